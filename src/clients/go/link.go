package swlimit

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
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

// now is the time since this process began, by a clock that nobody sets.
func now() time.Duration { return time.Since(began) }

var began = time.Now()

// A call is a command that is under way. Its link owns it: its caller may leave, and the reply is read all the same.
type call struct {
	command
	asking     bool          // preceded by ASKING
	redirected bool          // another server has said that this one has the key
	whole      bool          // with the script itself, which the server has lost
	byModule   bool          // whatever the link's dialect
	byScript   bool          // it was written so
	takenOver  bool          // its keys are the module's, or nobody's
	timeout    time.Duration // replies that take longer are late
	owner      *primary      // who hears how it went; may be nil
	done       chan struct{}
	state      atomic.Int32
	over       atomic.Bool // there is a reply, or none will come
	late       func(*call) // gets the reply when nobody waits for it any more

	link    *link
	written time.Duration // 0: not yet; guarded by the link's mutex
	reply   any
	err     error
}

const (
	waiting = iota
	answered
	left
)

// again is the same call, which is sent once more.
func (c *call) again() *call {
	return &call{command: c.command, asking: c.asking, redirected: c.redirected, whole: c.whole, byModule: c.byModule,
		takenOver: c.takenOver, timeout: c.timeout, owner: c.owner, done: make(chan struct{})}
}

// answer is called once, by the link.
func (c *call) answer(reply any, err error) {
	if text, ok := reply.(serverError); ok {
		reply, err = nil, text
	}
	c.reply, c.err = unpacked(reply, &c.command), err
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

// leave gives the call up, unless its reply is there. It tells whether the command has gone out.
func (c *call) leave(late func(*call)) (isLeft, wasWritten bool) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.late = late
	return c.state.CompareAndSwap(waiting, left), c.written > 0
}

// A link is one connection to a server, on which many commands may be under way.
type link struct {
	conn   *Conn
	server Server
	onPush func(pushed) // not nil: client tracking is on
	onLost func(*link)

	mu      sync.Mutex
	dialect dialect
	id      int64 // what the server calls this connection
	up      bool
	retired bool // takes nothing new
	err     error
	queue   []*call // not written yet
	sent    []*call // unanswered, oldest first
	owed    int     // replies of which something is being given back
	wake    chan struct{}
	gone    chan struct{}
	ready   chan struct{} // closed once it is up, or gone
	cancel  context.CancelFunc

	heard atomic.Int64 // when something was heard last
}

// connect makes a link and has it connect.
func (c *Conn) connect(server Server, onPush func(pushed), onLost func(*link)) *link {
	ctx, cancel := context.WithCancel(c.ctx)
	l := &link{conn: c, server: server, onPush: onPush, onLost: onLost, wake: make(chan struct{}, 1),
		gone: make(chan struct{}), ready: make(chan struct{}), cancel: cancel}
	l.heard.Store(int64(now()))
	if !c.spawn(func() { l.run(ctx) }) {
		l.fail(ErrClosed)
	}
	return l
}

// add has a call written. A link that has failed answers at once.
func (l *link) add(c *call) {
	c.link = l
	l.mu.Lock()
	if l.err != nil {
		err := l.err
		l.mu.Unlock()
		c.answer(nil, &unavailable{reason: "no connection", cause: err})
		return
	}
	l.queue = append(l.queue, c)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// takes tells whether a new command may go out on it.
func (l *link) takes() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.retired || len(l.sent)+len(l.queue) >= mostUnanswered {
		return false
	}
	if len(l.sent) == 0 {
		return true
	}
	return now()-max(time.Duration(l.heard.Load()), l.sent[0].written) <= silence
}

// retire has it close once it owes nothing, or after a while.
func (l *link) retire() {
	l.mu.Lock()
	l.retired = true
	l.mu.Unlock()
	if l.closeIfIdle() {
		return
	}
	time.AfterFunc(drain, func() { l.fail(errRetired) })
}

// closeIfIdle closes a retired link that owes nothing.
func (l *link) closeIfIdle() bool {
	l.mu.Lock()
	idle := l.retired && len(l.sent)+len(l.queue)+l.owed == 0
	l.mu.Unlock()
	if idle {
		l.fail(errRetired)
	}
	return idle
}

// owe counts the refunds that only this link can send.
func (l *link) owe(n int) {
	l.mu.Lock()
	l.owed += n
	l.mu.Unlock()
	l.closeIfIdle()
}

var errRetired = errors.New("the connection was silent for too long")

func (l *link) run(ctx context.Context) {
	dialing, cancel := context.WithTimeout(ctx, connectTimeout)
	conn, err := l.server.dial(dialing)
	if err == nil {
		stop := context.AfterFunc(dialing, func() { conn.Close() })
		r := bufio.NewReaderSize(conn, 1<<14)
		if err = l.greet(dialing, conn, r); err == nil && stop() {
			cancel()
			l.serve(ctx, conn, r)
			return
		}
		conn.Close()
		if cause := dialing.Err(); cause != nil {
			err = cause
		}
	}
	cancel()
	l.fail(err)
}

// greet begins a connection: who asks, in which database, and whether the module is there.
func (l *link) greet(ctx context.Context, conn net.Conn, r *bufio.Reader) error {
	auth, err := l.server.auth(ctx)
	if err != nil {
		return err
	}
	hello := append([]string{"HELLO", "3"}, auth...)
	replies, err := exchange(conn, r, hello, []string{"SELECT", strconv.Itoa(l.server.DB)}, []string{prefix + "ALLOW"},
		[]string{"EVALSHA_RO"})
	if err != nil {
		return err
	}
	if failed, ok := replies[0].(serverError); ok {
		if !unknownCommand.MatchString(string(failed)) && failed != "NOPROTO unsupported protocol version" {
			return failed
		}
		if l.onPush != nil {
			return errors.New("the server has no RESP3, which client tracking needs")
		}
		if auth != nil {
			again, err := exchange(conn, r, auth, []string{"SELECT", strconv.Itoa(l.server.DB)})
			if err != nil {
				return err
			}
			replies[0], replies[1] = again[0], again[1]
		}
	}
	for _, each := range replies[:2] {
		if failed, ok := each.(serverError); ok && (l.server.DB != 0 || condition.MatchString(string(failed))) {
			return failed
		}
	}
	if l.onPush != nil {
		if err := demanded(conn, r, "CLIENT", "TRACKING", "ON"); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lacks := func(reply any) bool {
		text, isError := reply.(serverError)
		return isError && unknownCommand.MatchString(string(text))
	}
	l.dialect = dialect{byScript: lacks(replies[2]), noReadSHA: lacks(replies[3])}
	l.id = idOf(replies[0])
	return nil
}

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

// idOf is the connection's id in the reply to HELLO; 0 where it says none.
func idOf(hello any) int64 {
	fields, _ := hello.([]any)
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == "id" {
			id, _ := fields[i+1].(int64)
			return id
		}
	}
	return 0
}

// serve writes and reads until the connection ends.
func (l *link) serve(ctx context.Context, conn net.Conn, r *bufio.Reader) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		conn.Close()
		return
	}
	l.up = true
	l.mu.Unlock()
	close(l.ready)
	l.heard.Store(int64(now()))
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	written := make(chan struct{})
	go func() {
		defer close(written)
		l.write(conn)
	}()
	err := l.read(r)
	l.fail(err)
	conn.Close()
	<-written
}

func (l *link) write(conn net.Conn) {
	var b []byte
	var batch []*call
	for {
		select {
		case <-l.wake:
		case <-l.gone:
			return
		}
		b = b[:0]
		l.mu.Lock()
		batch, l.queue = l.queue, batch[:0]
		at := now()
		for _, c := range batch {
			if c.state.Load() == left {
				continue
			}
			c.written = at
			if c.asking {
				b = appendWords(b, []string{"ASKING"})
				l.sent = append(l.sent, &call{written: at, done: make(chan struct{})})
			}
			l.sent = append(l.sent, c)
			d := l.dialect
			d.byScript = d.byScript && !c.byModule
			c.byScript = d.scripts(&c.command)
			b = appendWords(b, d.words(&c.command, c.whole))
		}
		l.mu.Unlock()
		clear(batch)
		if len(b) == 0 {
			continue
		}
		if _, err := conn.Write(b); err != nil {
			l.fail(err)
			return
		}
		if cap(b) > 1<<16 {
			b = nil
		}
	}
}

func (l *link) read(r *bufio.Reader) error {
	for {
		reply, err := readReply(r, 0)
		if err != nil {
			return err
		}
		l.heard.Store(int64(now()))
		if push, ok := reply.(pushed); ok {
			if l.onPush != nil {
				l.onPush(push)
			}
			continue
		}
		l.mu.Lock()
		if len(l.sent) == 0 {
			l.mu.Unlock()
			return errBroken
		}
		c := l.sent[0]
		l.sent[0] = nil
		l.sent = l.sent[1:]
		l.mu.Unlock()
		c.answer(reply, nil)
		if l.closeIfIdle() {
			return errRetired
		}
	}
}

// fail ends the link: what is under way is in doubt, and what was not written was not asked.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	sent, queue, up := l.sent, l.queue, l.up
	l.sent, l.queue, l.up = nil, nil, false
	close(l.gone)
	l.mu.Unlock()
	l.cancel()
	if !up {
		close(l.ready)
	}
	if l.onLost != nil {
		l.onLost(l)
	}
	for _, c := range sent {
		c.answer(nil, &unavailable{reason: "the connection was lost", cause: err, sent: true})
	}
	for _, c := range queue {
		if c.state.Load() != left {
			c.answer(nil, &unavailable{reason: "no connection", cause: err})
		}
	}
}

const (
	byModule = "module"
	byScript = "script"
)

// backend says what decides there; nothing before it is up.
func (l *link) backend() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.up:
		return ""
	case l.dialect.byScript:
		return byScript
	}
	return byModule
}

// adapt has f change how the server is asked.
func (l *link) adapt(f func(*dialect)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.dialect)
}

// isGone tells whether it has failed.
func (l *link) isGone() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// do asks on this connection and no other, for as long as ctx lasts.
func (l *link) do(ctx context.Context, c command) (any, error) {
	asked := &call{command: c, done: make(chan struct{})}
	l.add(asked)
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
