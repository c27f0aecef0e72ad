package swlimit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
)

// The words for why a server is unavailable are the same in every language. An error reply's own code is one, too.
const (
	reasonRefused        = "refused"
	reasonUnresolved     = "unresolved"
	reasonCertificate    = "certificate"
	reasonNoAnswer       = "no_answer"
	reasonDisconnected   = "disconnected"
	reasonSlow           = "slow"
	reasonBadReply       = "bad_reply"
	reasonAuth           = "auth"
	reasonTooManyClients = "too_many_clients"
	reasonModuleMissing  = "module_missing"
	reasonCluster        = "cluster"
	reasonOther          = "other"
)

// ReasonOf is the word for why a server was unavailable, such as "refused" or "no_answer"; "" for other errors.
func ReasonOf(err error) string {
	var failed *unavailable
	if errors.As(err, &failed) {
		return failed.reason
	}
	return ""
}

// reasonOfEnd is why a connection could not be had, or ended.
func reasonOfEnd(err error) string {
	var (
		text      serverError
		dns       *net.DNSError
		timeout   net.Error
		verified  *tls.CertificateVerificationError
		record    tls.RecordHeaderError
		alert     tls.AlertError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		known     *unavailable
	)
	switch {
	case errors.As(err, &known):
		return known.reason
	case errors.As(err, &text):
		if reason := reasonOfReply(string(text)); reason != "" {
			return reason
		}
		return reasonOther
	case isAny(err, syscall.ECONNREFUSED, syscall.ENOENT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, os.ErrNotExist):
		return reasonRefused
	case errors.As(err, &verified), errors.As(err, &record), errors.As(err, &alert), errors.As(err, &authority),
		errors.As(err, &host), errors.As(err, &invalid):
		return reasonCertificate
	case errors.As(err, &dns) && !dns.IsTimeout:
		return reasonUnresolved
	case isAny(err, context.DeadlineExceeded, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return reasonNoAnswer
	case isAny(err, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed, errRetired):
		return reasonDisconnected
	case errors.Is(err, errBroken):
		return reasonBadReply
	}
	return reasonOther
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

var (
	conditions = regexp.MustCompile(`^(BUSY|CLUSTERDOWN|FAILOVER|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY)\b`)
	authentic  = regexp.MustCompile(`^(NOAUTH\b|WRONGPASS\b|ERR invalid password|ERR AUTH <password> called)`)
	tooMany    = regexp.MustCompile(`^ERR max number of clients\b`)
	// callersOwn are errors about what was asked for, which say nothing of the server.
	callersOwn = regexp.MustCompile(`^(ERR|WRONGTYPE|NOPERM|CROSSSLOT|UNBLOCKED|TRYAGAIN|NOSCRIPT|EXECABORT|NOPROTO)\b`)
	aCode      = regexp.MustCompile(`^[A-Z]+ `)
)

// reasonOfReply is why an error reply means that the server is unavailable; "" where it does not.
func reasonOfReply(text string) string {
	code := conditions.FindString(text)
	switch {
	case code != "":
		return code
	case authentic.MatchString(text):
		return reasonAuth
	case tooMany.MatchString(text):
		return reasonTooManyClients
	case unknownCommand.MatchString(text):
		return reasonModuleMissing
	case strings.HasPrefix(text, "MOVED "), strings.HasPrefix(text, "ASK "):
		return reasonCluster
	case callersOwn.MatchString(text) || !aCode.MatchString(text):
		return ""
	}
	return reasonOther
}
