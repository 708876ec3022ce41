package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"

	"paredao/internal/vote"
)

// problem is an error as the public sees it, RFC 9457.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Code is stable: clients may branch on it.
	Code string `json:"code"`
	// retryAfter and allow become headers.
	retryAfter, allow string
	// cause is logged, and never shown.
	cause error
	// close ends the connection after the answer.
	close bool
}

func (p *problem) Error() string { return p.Code + ": " + p.Detail }

func (p *problem) Unwrap() error { return p.cause }

func newProblem(status int, code, detail string) *problem {
	return &problem{Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

func malformed(detail string) *problem {
	return newProblem(http.StatusBadRequest, "malformed-body", detail)
}

func unavailable(cause error) *problem {
	p := newProblem(http.StatusServiceUnavailable, "queue-unavailable",
		"The vote may or may not have been taken. Send it again with the same Idempotency-Key.")
	p.retryAfter, p.cause = "1", cause
	return p
}

func methodNotAllowed(allow string) *problem {
	p := newProblem(http.StatusMethodNotAllowed, "method-not-allowed", "Allowed here: "+allow+".")
	p.allow = allow
	return p
}

// toProblem turns any error into one that may be shown. What it does not know
// is an internal error, whose text stays inside.
func toProblem(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	switch {
	case errors.Is(err, vote.ErrPollNotFound):
		return newProblem(http.StatusNotFound, "poll-not-found", "There is no such poll.")
	case errors.Is(err, vote.ErrPollNotOpen):
		return newProblem(http.StatusConflict, "poll-not-open", "The poll is not open yet.")
	case errors.Is(err, vote.ErrPollClosed):
		return newProblem(http.StatusConflict, "poll-closed", "The poll is closed.")
	case errors.Is(err, vote.ErrKeyReused):
		return newProblem(http.StatusConflict, "idempotency-key-reused",
			"This Idempotency-Key was used for a vote for another option.")
	case errors.Is(err, vote.ErrUnknownOption):
		return newProblem(http.StatusUnprocessableEntity, "unknown-option", "The poll has no such option.")
	case errors.Is(err, vote.ErrUnknownClass):
		return newProblem(http.StatusUnprocessableEntity, "unknown-class", "The poll has no such class.")
	case errors.Is(err, vote.ErrOverloaded):
		p := newProblem(http.StatusServiceUnavailable, "overloaded",
			"Too many votes at this moment. Send it again with the same Idempotency-Key.")
		p.retryAfter, p.cause = "1", err
		return p
	case errors.Is(err, vote.ErrUnavailable):
		return unavailable(err)
	}
	var f *fiber.Error
	if errors.As(err, &f) {
		return fromFiber(f)
	}
	p = newProblem(http.StatusInternalServerError, "internal", "Something went wrong on our side.")
	p.cause = err
	return p
}

// fromFiber names what the server itself refused, before any handler.
func fromFiber(f *fiber.Error) *problem {
	var p *problem
	switch f.Code {
	case http.StatusRequestEntityTooLarge:
		p = newProblem(f.Code, "body-too-large", "The body is larger than this server takes.")
	case http.StatusRequestHeaderFieldsTooLarge:
		p = newProblem(f.Code, "headers-too-large", "The headers are larger than this server takes.")
	case http.StatusRequestTimeout, http.StatusBadGateway:
		p = newProblem(http.StatusRequestTimeout, "request-timeout", "The request took too long to arrive.")
	case http.StatusNotFound:
		return newProblem(f.Code, "not-found", "There is nothing at this address.")
	default:
		p = newProblem(http.StatusBadRequest, "malformed-request", "The request is no HTTP that this server reads.")
	}
	p.close, p.cause = true, f
	return p
}

const problemType = "application/problem+json"

// send writes the problem and returns the request's id, for the log.
func (p *problem) send(c *fiber.Ctx) string {
	id := requestID(c)
	body, err := json.Marshal(p)
	if err != nil { // strings and a number: it can't fail
		body = []byte(`{}`)
	}
	c.Status(p.Status)
	c.Set(fiber.HeaderContentType, problemType)
	c.Set(fiber.HeaderXRequestID, id)
	c.Set(fiber.HeaderCacheControl, "no-store")
	if p.retryAfter != "" {
		c.Set(fiber.HeaderRetryAfter, p.retryAfter)
	}
	if p.allow != "" {
		c.Set(fiber.HeaderAllow, p.allow)
	}
	if p.close {
		c.Context().SetConnectionClose()
		if conn, ok := c.Context().Conn().(*edgeConn); ok {
			d := lingerTime
			if p.Status == http.StatusRequestTimeout {
				d = lingerPause // it has had its time
			}
			conn.linger.Store(int64(d))
		}
	}
	c.Response().SetBodyRaw(body)
	return id
}

// requestID is the caller's own id, if it is a sane one, or a new one.
func requestID(c *fiber.Ctx) string {
	id := c.Request().Header.Peek(fiber.HeaderXRequestID)
	if len(id) > 0 && len(id) <= 128 && visible(id) {
		return string(id)
	}
	return uuid.NewString()
}

// visible tells whether b is visible ASCII throughout.
func visible(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}
