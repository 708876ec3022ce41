package redisstore

import (
	"embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua
var luaFiles embed.FS

// scripts holds one field for each file in lua/.
type scripts struct {
	register, enqueue                       *redis.Script
	read, commit                            *redis.Script
	archiveState, archiveFix, archiveCommit *redis.Script
	restore, restoreMark                    *redis.Script
	member, claim, release                  *redis.Script
	pollApply, pollWindow, shardPolls       *redis.Script
	results, snapshot, queue, deadRemove    *redis.Script
	meta                                    *redis.Script
}

// loadScripts reads the embedded files. The embedded Redis of allinone takes no
// shebang line, and has no memory limit for its flags to speak of.
func loadScripts(embedded bool) (scripts, error) {
	var s scripts
	for name, dst := range map[string]**redis.Script{
		"register": &s.register, "enqueue": &s.enqueue,
		"read": &s.read, "commit": &s.commit,
		"archive_state": &s.archiveState, "archive_fix": &s.archiveFix, "archive_commit": &s.archiveCommit,
		"restore": &s.restore, "restore_mark": &s.restoreMark,
		"member": &s.member, "claim": &s.claim, "release": &s.release,
		"poll_apply": &s.pollApply, "poll_window": &s.pollWindow, "shard_polls": &s.shardPolls,
		"results": &s.results, "snapshot": &s.snapshot, "queue": &s.queue, "dead_remove": &s.deadRemove,
		"meta": &s.meta,
	} {
		src, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			return s, fmt.Errorf("script %s: %w", name, err)
		}
		text := string(src)
		if embedded {
			_, text, _ = strings.Cut(text, "\n")
		}
		*dst = redis.NewScript(text)
	}
	return s, nil
}
