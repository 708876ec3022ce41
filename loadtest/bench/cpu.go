package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is Linux's USER_HZ, 100 everywhere.
const tick = 10 * time.Millisecond

// processTime is the processor time of a process, user and system.
func processTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseProcessStat(b)
}

// parseProcessStat reads utime and stime of /proc/PID/stat.
func parseProcessStat(b []byte) (time.Duration, error) {
	// The name stands in parentheses and may hold anything.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const user, system = 11, 12 // proc(5), less pid and name
	if len(f) <= system {
		return 0, fmt.Errorf("/proc/PID/stat: %q", b)
	}
	u, err1 := strconv.ParseInt(f[user], 10, 64)
	s, err2 := strconv.ParseInt(f[system], 10, 64)
	return time.Duration(u+s) * tick, errors.Join(err1, err2)
}

// ownTime is the benchmark's own processor time.
func ownTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// machineTime is what the machine's processors have done since it started.
type machineTime struct {
	// process is the time of processes, other that of interrupts and stolen
	// time; idle includes waits for the disk.
	process, other, idle time.Duration
}

func readMachine() (machineTime, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return machineTime{}, err
	}
	return parseMachineStat(string(b))
}

// parseMachineStat reads the line of all processors in /proc/stat.
func parseMachineStat(text string) (machineTime, error) {
	var m machineTime
	seen := false
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 9 || f[0] != "cpu" {
			continue
		}
		seen = true
		var v [8]time.Duration // user nice system idle iowait irq softirq steal
		for i := range v {
			n, err := strconv.ParseInt(f[i+1], 10, 64)
			if err != nil {
				return m, fmt.Errorf("/proc/stat: %q", line)
			}
			v[i] = time.Duration(n) * tick
		}
		m.process = v[0] + v[1] + v[2]
		m.idle = v[3] + v[4]
		m.other = v[5] + v[6] + v[7]
	}
	if !seen {
		return m, errors.New("/proc/stat has no line cpu")
	}
	return m, nil
}

// shares are how the machine's time was spent during a run, of 1.
type shares struct {
	Idle float64 `json:"idle"`
	// Foreign is what processes had that are none of the benchmark's.
	Foreign float64 `json:"foreign"`
	// Other is interrupts, and time that the hypervisor took.
	Other float64 `json:"interrupts_and_steal"`
}

// share compares two readings; known is the time of the benchmark's processes.
func share(before, after machineTime, known time.Duration) shares {
	process, other, idle := after.process-before.process, after.other-before.other, after.idle-before.idle
	all := float64(process + other + idle)
	if all <= 0 {
		return shares{}
	}
	return shares{
		Idle:    float64(idle) / all,
		Foreign: max(0, float64(process-known)/all),
		Other:   float64(other) / all,
	}
}
