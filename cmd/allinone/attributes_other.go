//go:build !linux

package main

import "syscall"

// childAttributes keep the child out of the terminal's group, so that Ctrl-C
// does not end it before the votes are in.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
