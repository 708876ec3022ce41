package main

import "syscall"

// childAttributes keep the child out of the terminal's group, so that Ctrl-C
// does not end it before the votes are in, and let it end with this process.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
