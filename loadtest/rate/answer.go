//go:build linux

package main

import (
	"bytes"
	"errors"
	"strconv"
)

// answer is what is looked at of an answer.
type answer struct {
	status int
	closes bool // the server closes the connection
}

var (
	errNoAnswer = errors.New("no HTTP answer")
	errNoLength = errors.New("answer without Content-Length")
)

// longestAnswer is far above what the api says to a vote.
const longestAnswer = 64 << 10

// parseAnswer reads the answer at the start of b and says how long it is; 0 while
// it is incomplete. It knows as much of HTTP as the api's answers need.
func parseAnswer(b []byte) (a answer, size int, err error) {
	head := bytes.Index(b, []byte("\r\n\r\n"))
	if head < 0 {
		if len(b) > longestAnswer {
			return a, 0, errNoAnswer
		}
		return a, 0, nil
	}
	lines, start := b[:head+2], head+4
	const statusLine = len("HTTP/1.1 202")
	if len(lines) < statusLine+2 || !bytes.HasPrefix(lines, []byte("HTTP/1.")) {
		return a, 0, errNoAnswer
	}
	if a.status, err = strconv.Atoi(string(lines[9:statusLine])); err != nil || a.status < 100 || a.status > 599 {
		return a, 0, errNoAnswer
	}
	if a.status < 200 { // another answer follows
		a, size, err = parseAnswer(b[start:])
		if size > 0 {
			size += start
		}
		return a, size, err
	}
	a.closes = lines[7] == '0'
	length := -1
	for len(lines) > 0 {
		var line []byte
		line, lines, _ = bytes.Cut(lines, []byte("\n"))
		if value, ok := header(line, "content-length"); ok {
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 || length > longestAnswer {
				return a, 0, errNoAnswer
			}
		} else if value, ok := header(line, "connection"); ok {
			a.closes = a.closes || bytes.EqualFold(value, []byte("close"))
		}
	}
	switch {
	case a.status == 204 || a.status == 304:
		length = 0
	case length < 0:
		return a, 0, errNoLength
	}
	if len(b) < start+length {
		return a, 0, nil
	}
	return a, start + length, nil
}

// header is the value of a header's line, if it has that name, given in lower
// case.
func header(line []byte, name string) ([]byte, bool) {
	if len(line) <= len(name) || line[len(name)] != ':' || line[0]|0x20 != name[0] || !bytes.EqualFold(line[:len(name)], []byte(name)) {
		return nil, false
	}
	return bytes.TrimSpace(line[len(name)+1:]), true
}
