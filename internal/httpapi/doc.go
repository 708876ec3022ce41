// Package httpapi is the public HTTP API: the edge of stage 1, and the only
// package that knows Fiber. It takes votes, checks them against the polls'
// definitions, and hands them to a Submitter; it serves definitions and results.
package httpapi
