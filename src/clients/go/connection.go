package swlimit

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	connectTimeout = 10 * time.Second // a connection that takes longer is given up
	slowConnect    = time.Second      // one that takes longer says something of the server
	silence        = time.Second      // a connection that owes replies and is silent for longer takes nothing new
	drain          = 10 * time.Second // and is closed after that
	mostUnanswered = 1000             // commands on one connection
)

// A Server says how to connect to one server. The zero value of each field but Addr is what most servers need.
type Server struct {
	// Addr is its host and port, or the path of its socket.
	Addr string
	// Network is "tcp" unless it says "unix".
	Network string
	// Username and Password are sent with HELLO or AUTH, unless both are empty.
	Username, Password string
	// Credentials is asked for them at each connection to an address instead, where it is not nil.
	Credentials func(ctx context.Context, addr string) (username, password string, err error)
	// DB is the database's number.
	DB int
	// TLS is the configuration of encrypted connections; nil means a connection in the clear.
	TLS *tls.Config
	// Dial opens a connection in place of a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (s *Server) dial(ctx context.Context) (net.Conn, error) {
	network := s.Network
	if network == "" {
		network = "tcp"
	}
	conn, err := s.open(ctx, network)
	if err != nil || s.TLS == nil {
		return conn, err
	}
	config := s.TLS.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(s.Addr)
	}
	encrypted := tls.Client(conn, config)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return encrypted, nil
}

// open ends with ctx, also where Dial does not: those of some libraries ignore it when they encrypt.
func (s *Server) open(ctx context.Context, network string) (net.Conn, error) {
	if s.Dial == nil {
		return new(net.Dialer).DialContext(ctx, network, s.Addr)
	}
	type opened struct {
		conn net.Conn
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		conn, err := s.Dial(ctx, network, s.Addr)
		done <- opened{conn, err}
	}()
	select {
	case o := <-done:
		return o.conn, o.err
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				o.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// auth are the words that say who asks; none where nobody has to.
func (s *Server) auth(ctx context.Context) (words []string, err error) {
	username, password := s.Username, s.Password
	if s.Credentials != nil {
		if username, password, err = s.Credentials(ctx, s.Addr); err != nil {
			return nil, err
		}
	}
	switch {
	case password == "":
		return nil, nil
	case username == "":
		username = "default"
	}
	return []string{"AUTH", username, password}, nil
}

// at is a server at another address, with the same settings.
func (s Server) at(addr string) Server {
	s.Addr = addr
	return s
}

// converse has f ask over a connection of its own, which ends with ctx.
func (s Server) converse(ctx context.Context, f func(net.Conn, *bufio.Reader) error) error {
	dialing, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := s.dial(dialing)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(connectTimeout))
	r := bufio.NewReader(conn)
	auth, err := s.auth(dialing)
	if err == nil && auth != nil {
		err = demanded(conn, r, auth...)
	}
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	return f(conn, r)
}

// now is the time since an instant before this process began, by a clock that nobody sets.
func now() time.Duration { return time.Since(began) }

// began is so long ago that also in a bubble of testing/synctest, where it is the year 2000, some time has passed since.
var began = time.Now().Add(-50 * 365 * 24 * time.Hour)

// A call is a command that is under way. Its connection owns it: its caller may leave, and the reply is read all the
// same.
type call struct {
	command
	asking     bool          // preceded by ASKING
	redirected bool          // another server has said that this one has the key
	whole      bool          // with the script itself, which the server has lost
	byModule   bool          // whatever the connection's dialect
	looks      bool          // byModule, to find out whether the module is there now
	byScript   bool          // it was written so
	takenOver  bool          // its keys are the module's, or nobody's
	timeout    time.Duration // replies that take longer are late
	owner      *server       // who hears how it went; may be nil
	done       chan struct{}
	state      atomic.Int32
	over       atomic.Bool // there is a reply, or none will come
	late       func(*call) // gets the reply when nobody waits for it any more

	connection *connection
	written    time.Duration // 0: not yet; guarded by the connection's mutex
	isAlone    bool          // nothing was unanswered when it was written: its reply took the link's round trip
	heard      time.Duration // when its reply came
	reply      any
	err        error
}

const (
	waiting = iota
	answered
	left
)

// again is the same call, which is sent once more.
func (c *call) again() *call {
	return &call{command: c.command, asking: c.asking, redirected: c.redirected, whole: c.whole, byModule: c.byModule,
		takenOver: c.takenOver, looks: c.looks, timeout: c.timeout, owner: c.owner, done: make(chan struct{})}
}

// answer is called once, by the connection.
func (c *call) answer(reply any, err error) {
	if text, ok := reply.(serverError); ok {
		reply, err = nil, text
	}
	c.heard = now()
	if c.reply, c.err = unpacked(reply, &c.command), err; err == nil {
		c.reply, c.err = c.read(c.reply)
	}
	c.over.Store(true)
	if c.owner != nil {
		c.owner.heardOf(c)
	}
	if c.state.CompareAndSwap(waiting, answered) {
		close(c.done)
	} else if c.late != nil {
		c.late(c)
	}
}

// watch waits for the reply, however late it comes. Once it is late, the breaker gets that.
func (c *call) watch() {
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-timer.C:
		}
		c.connection.mu.Lock()
		written := c.written
		c.connection.mu.Unlock()
		left := written + c.timeout - now()
		switch {
		case written == 0: // the connection is not up yet
			timer.Reset(c.timeout)
		case left > 0:
			timer.Reset(left)
		default:
			c.owner.overdue(c)
		}
	}
}

// trip is how long its reply took.
func (c *call) trip() time.Duration { return c.heard - c.written }

// isFree tells whether a server answers it that refuses all else.
func (c *call) isFree() bool {
	return c.name == "" && !c.takesOver && slices.Contains([]string{"TIME", "PING", "CLIENT", "PTTL"}, c.arguments[0])
}

// leave gives the call up, unless its reply is there. It tells whether the command has gone out.
func (c *call) leave(late func(*call)) (isLeft, wasWritten bool) {
	c.connection.mu.Lock()
	defer c.connection.mu.Unlock()
	c.late = late
	return c.state.CompareAndSwap(waiting, left), c.written > 0
}

// A connection is one to a server, on which many commands may be under way.
type connection struct {
	client *Client
	of     *server // whose requests it carries; nil: nobody's
	server Server
	onPush func(pushed) // not nil: client tracking is on
	onLost func(*connection)

	mu       sync.Mutex
	dialect  dialect
	id       int64 // what the server calls this connection
	up       bool
	retired  bool // takes nothing new
	err      error
	queue    []*call // not written yet
	reserved int     // places of calls that will be added
	sent     []*call // unanswered, oldest first
	owed     int     // replies of which something is being given back
	wake     chan struct{}
	gone     chan struct{}
	ready    chan struct{} // closed once it is up, or gone
	cancel   context.CancelFunc

	heard  atomic.Int64 // when something was heard last
	onTime atomic.Int64 // when a reply came last that was in time
	silent atomic.Int64 // when silence counted as a failure last
	failed atomic.Bool  // whether its end counts as a failure already
}

// connect makes a connection to a server at an address; p may be nil.
func (c *Client) connect(p *server, at Server, onPush func(pushed), onLost func(*connection)) *connection {
	ctx, cancel := context.WithCancel(c.ctx)
	cn := &connection{client: c, of: p, server: at, onPush: onPush, onLost: onLost, wake: make(chan struct{}, 1),
		gone: make(chan struct{}), ready: make(chan struct{}), cancel: cancel}
	cn.heard.Store(int64(now()))
	if !c.spawn(func() { cn.run(ctx) }) {
		cn.fail(ErrClosed)
	}
	return cn
}

// add has a call written. A connection that has failed answers at once.
func (cn *connection) add(c *call) {
	c.connection = cn
	cn.mu.Lock()
	cn.reserved = max(0, cn.reserved-1)
	if cn.err != nil {
		err := cn.err
		cn.mu.Unlock()
		c.answer(nil, &unavailable{text: "no connection", reason: reasonOfEnd(err), cause: err})
		return
	}
	cn.queue = append(cn.queue, c)
	cn.mu.Unlock()
	select {
	case cn.wake <- struct{}{}:
	default:
	}
}

// isUsable tells whether new commands may go out on it, once there is room.
func (cn *connection) isUsable() bool {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	if cn.err != nil || cn.retired {
		return false
	}
	return len(cn.sent) == 0 || now()-max(time.Duration(cn.heard.Load()), cn.sent[0].written) <= silence
}

// reserve keeps a place for a call that is added next, if there is one.
func (cn *connection) reserve() bool {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	if len(cn.sent)+len(cn.queue)+cn.reserved >= mostUnanswered {
		return false
	}
	cn.reserved++
	return true
}

// retire has it close once it owes nothing, or after a while.
func (cn *connection) retire() {
	cn.mu.Lock()
	cn.retired = true
	cn.mu.Unlock()
	if cn.closeIfIdle() {
		return
	}
	time.AfterFunc(drain, func() { cn.fail(errRetired) })
}

// isRetired tells whether requests have left it: what it owes says how the link was, and not how it is.
func (cn *connection) isRetired() bool {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	return cn.retired
}

// closeIfIdle closes a retired connection that owes nothing.
func (cn *connection) closeIfIdle() bool {
	cn.mu.Lock()
	idle := cn.retired && len(cn.sent)+len(cn.queue)+cn.owed+cn.reserved == 0
	cn.mu.Unlock()
	if idle {
		cn.fail(errRetired)
	}
	return idle
}

// isNewSilence tells whether a call was written after silence counted as a failure last: all that one silence leaves
// unanswered is one failure.
func (cn *connection) isNewSilence(written time.Duration) bool {
	last := cn.silent.Load()
	return int64(written) > last && cn.silent.CompareAndSwap(last, int64(now()))
}

// owe counts the refunds that only this connection can send.
func (cn *connection) owe(n int) {
	cn.mu.Lock()
	cn.owed += n
	cn.mu.Unlock()
	cn.closeIfIdle()
}

var errRetired = errors.New("the connection was silent for too long")

func (cn *connection) run(ctx context.Context) {
	dialing, cancel := context.WithTimeout(ctx, connectTimeout)
	conn, err := cn.server.dial(dialing)
	if err == nil {
		stop := context.AfterFunc(dialing, func() { conn.Close() })
		r := bufio.NewReaderSize(conn, 1<<14)
		if err = cn.greet(dialing, conn, r); err == nil && stop() {
			cancel()
			cn.serve(ctx, conn, r)
			return
		}
		conn.Close()
		if cause := dialing.Err(); cause != nil {
			err = cause
		}
	}
	cancel()
	cn.fail(err)
}

// greet begins a connection: who asks, in which database, and which of the module's commands are there. Commands whose
// ids are not text are asked for by their bare names: an error would quote them.
func (cn *connection) greet(ctx context.Context, conn net.Conn, r *bufio.Reader) error {
	auth, err := cn.server.auth(ctx)
	if err != nil {
		return err
	}
	first := [][]string{append([]string{"HELLO", "3"}, auth...), {"SELECT", strconv.Itoa(cn.server.DB)}, {"EVALSHA_RO"},
		{prefix + "ALLOW"}}
	asked := len(first)
	for _, name := range idCommands {
		first = append(first, []string{prefix + name})
	}
	if name := cn.client.settings.name; name != "" {
		first = append(first, []string{"CLIENT", "SETNAME", name})
	}
	replies, err := exchange(conn, r, first...)
	if err != nil {
		return err
	}
	if failed, ok := replies[0].(serverError); ok {
		if !unknownCommand.MatchString(string(failed)) && !strings.HasPrefix(string(failed), "NOPROTO ") {
			return failed
		}
		if cn.onPush != nil {
			return errors.New("the server has no RESP3, which client tracking needs")
		}
		if auth != nil {
			again, err := exchange(conn, r, append([][]string{auth}, first[1:]...)...)
			if err != nil {
				return err
			}
			replies = again
		}
	}
	for _, each := range replies[:2] {
		if failed, ok := each.(serverError); ok && (cn.server.DB != 0 || isCondition(failed)) {
			return failed
		}
	}
	if cn.onPush != nil {
		if err := demanded(conn, r, "CLIENT", "TRACKING", "ON"); err != nil {
			return err
		}
	}
	lacks := func(reply any) bool {
		text, isError := reply.(serverError)
		return isError && unknownCommand.MatchString(string(text))
	}
	d := dialect{noReadSHA: lacks(replies[2]), byScript: lacks(replies[3])}
	for i, name := range idCommands {
		if lacks(replies[asked+i]) {
			d.lacks = append(d.lacks, name)
		}
	}
	if len(d.lacks) < len(idCommands) { // a server that has one of them has a module
		d.byScript = false
	}
	cn.mu.Lock()
	defer cn.mu.Unlock()
	cn.dialect = d
	cn.id, _ = helloOf(replies[0], "id").(int64)
	if mode, _ := helloOf(replies[0], "mode").(string); mode == "cluster" {
		cn.client.isOfCluster(cn.server)
	}
	return nil
}

// idCommands are those that take an id.
var idCommands = []string{"HOLD", "RENEW", "RELEASE", "ADMIT", "SETTLE"}

// exchange asks something before anybody else does.
func exchange(conn net.Conn, r *bufio.Reader, commands ...[]string) ([]any, error) {
	var b []byte
	for _, words := range commands {
		b = appendWords(b, words)
	}
	if _, err := conn.Write(b); err != nil {
		return nil, err
	}
	replies := make([]any, 0, len(commands))
	for len(replies) < len(commands) {
		reply, err := readReply(r, 0)
		if err != nil {
			return nil, err
		}
		if _, isPush := reply.(pushed); !isPush {
			replies = append(replies, reply)
		}
	}
	return replies, nil
}

// demanded is nil where the server has done what a command says, before anybody else asks.
func demanded(conn net.Conn, r *bufio.Reader, words ...string) error {
	replies, err := exchange(conn, r, words)
	if err != nil {
		return err
	}
	if failed, ok := replies[0].(serverError); ok {
		return failed
	}
	return nil
}

// helloOf is a field of the reply to HELLO; nil where there is none.
func helloOf(hello any, name string) any {
	fields, _ := hello.([]any)
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == name {
			return fields[i+1]
		}
	}
	return nil
}

// serve writes and reads until the connection ends.
func (cn *connection) serve(ctx context.Context, conn net.Conn, r *bufio.Reader) {
	cn.mu.Lock()
	if cn.err != nil {
		cn.mu.Unlock()
		conn.Close()
		return
	}
	cn.up = true
	cn.mu.Unlock()
	close(cn.ready)
	cn.heard.Store(int64(now()))
	if cn.of != nil {
		cn.of.look(cn)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	written := make(chan struct{})
	go func() {
		defer close(written)
		cn.write(conn)
	}()
	err := cn.read(r)
	cn.fail(err)
	conn.Close()
	<-written
}

func (cn *connection) write(conn net.Conn) {
	var b []byte
	var batch []*call
	for {
		select {
		case <-cn.wake:
		case <-cn.gone:
			return
		}
		b = b[:0]
		cn.mu.Lock()
		batch, cn.queue = cn.queue, batch[:0]
		at, isAlone := now(), len(cn.sent) == 0
		for _, c := range batch {
			if c.state.Load() == left {
				continue
			}
			c.written, c.isAlone = at, isAlone
			isAlone = false
			if c.asking {
				b = appendWords(b, []string{"ASKING"})
				cn.sent = append(cn.sent, &call{written: at, done: make(chan struct{})})
			}
			cn.sent = append(cn.sent, c)
			d := cn.dialect
			d.byScript = d.byScript && !c.byModule
			c.byScript = d.scripts(&c.command)
			b = appendWords(b, d.words(&c.command, c.whole))
		}
		cn.mu.Unlock()
		clear(batch)
		if len(b) == 0 {
			continue
		}
		if _, err := conn.Write(b); err != nil {
			cn.fail(err)
			return
		}
		if cap(b) > 1<<16 {
			b = nil
		}
	}
}

func (cn *connection) read(r *bufio.Reader) error {
	for {
		reply, err := readReply(r, 0)
		if err != nil {
			return err
		}
		cn.heard.Store(int64(now()))
		if push, ok := reply.(pushed); ok {
			if cn.onPush != nil {
				cn.onPush(push)
			}
			continue
		}
		cn.mu.Lock()
		if len(cn.sent) == 0 {
			cn.mu.Unlock()
			return errBroken
		}
		c := cn.sent[0]
		cn.sent[0] = nil
		cn.sent = cn.sent[1:]
		cn.mu.Unlock()
		c.answer(reply, nil)
		if cn.of != nil {
			cn.of.nextTurn()
		}
		if cn.closeIfIdle() {
			return errRetired
		}
	}
}

// fail ends the connection: what is under way is in doubt, and what was not written was not asked.
func (cn *connection) fail(err error) {
	cn.mu.Lock()
	if cn.err != nil {
		cn.mu.Unlock()
		return
	}
	cn.err = err
	sent, queue, up := cn.sent, cn.queue, cn.up
	cn.sent, cn.queue, cn.up = nil, nil, false
	close(cn.gone)
	cn.mu.Unlock()
	cn.cancel()
	if !up {
		close(cn.ready)
	}
	if cn.onLost != nil {
		cn.onLost(cn)
	}
	reason := reasonOfEnd(err)
	for _, c := range sent {
		c.answer(nil, &unavailable{text: "the connection was lost", reason: reason, cause: err, sent: true})
	}
	for _, c := range queue {
		if c.state.Load() != left {
			c.answer(nil, &unavailable{text: "no connection", reason: reason, cause: err})
		}
	}
	if cn.of != nil {
		cn.of.nextTurn()
	}
}

const (
	byModule = "module"
	byScript = "script"
)

// backend says what decides there; nothing before it is up.
func (cn *connection) backend() string {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	switch {
	case !cn.up:
		return ""
	case cn.dialect.byScript:
		return byScript
	}
	return byModule
}

// adapt has f change how the server is asked.
func (cn *connection) adapt(f func(*dialect)) {
	cn.mu.Lock()
	defer cn.mu.Unlock()
	f(&cn.dialect)
}

// isGone tells whether it has failed.
func (cn *connection) isGone() bool {
	select {
	case <-cn.gone:
		return true
	default:
		return false
	}
}

// do asks on this connection and no other, for as long as ctx lasts.
func (cn *connection) do(ctx context.Context, c command) (any, error) {
	asked := &call{command: c, done: make(chan struct{})}
	cn.add(asked)
	select {
	case <-asked.done:
		return asked.reply, asked.err
	case <-ctx.Done():
		if isLeft, _ := asked.leave(nil); !isLeft {
			<-asked.done
			return asked.reply, asked.err
		}
		return nil, ctx.Err()
	}
}
