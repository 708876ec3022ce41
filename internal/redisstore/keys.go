package redisstore

import (
	"encoding/base64"
	"strconv"

	"paredao/internal/vote"
)

// Every key of Paredão is built in this file. All keys of a shard carry its
// hash tag {N}, so that they share a slot of a Redis Cluster; a script's keys
// are always those of one shard.
//
//	votes:{N}             list    the queue: frames, oldest first (public)
//	archive:{N}           list    counted frames, not yet archived (public)
//	dead:{N}              list    elements no consumer could read (public)
//	tally:{N}:<poll>      hash    option or class/option -> votes (public)
//	ledger:{N}            hash    <what>:<poll> -> votes, and the shard's counters
//	polls:{N}             hash    poll -> definition (JSON)
//	windows:{N}           hash    poll -> "<opens ms> <closes ms> <options key>[ closed]"
//	pollsrev:{N}          string  changes with every change of polls or windows
//	flusher:{N}:<id>      string  a flusher's last sequence number and its answer
//	idem:{N}:<digest>     string  a used idempotency key: "<option> <id> <ms>"
//	                              (digest and id in base64url: there are many)
//	batch:{N}             hash    the archive batch that is fixed
//	batches:{N}           hash    sequence -> id of every committed batch
//	wake:{N}              list    at most one element: a consumer may wake up
//	owner:{N}:<role>      string  who works on the shard (advisory)
//	members:{0}:<role>    zset    live workers of a role by time last seen (ms)
//	meta:{0}              hash    queue_shards, ip_hmac_key
type keys struct{ tag string }

func shardKeys(shard int) keys { return keys{"{" + strconv.Itoa(shard) + "}"} }

func (k keys) votes() string            { return "votes:" + k.tag }
func (k keys) archive() string          { return "archive:" + k.tag }
func (k keys) dead() string             { return "dead:" + k.tag }
func (k keys) tally(poll string) string { return "tally:" + k.tag + ":" + poll }
func (k keys) ledger() string           { return "ledger:" + k.tag }
func (k keys) polls() string            { return "polls:" + k.tag }
func (k keys) windows() string          { return "windows:" + k.tag }
func (k keys) pollsRev() string         { return "pollsrev:" + k.tag }
func (k keys) flusher(id string) string { return "flusher:" + k.tag + ":" + id }
func (k keys) idem(d vote.IdempotencyKey) string {
	return "idem:" + k.tag + ":" + base64.RawURLEncoding.EncodeToString(d[:])
}
func (k keys) batch() string              { return "batch:" + k.tag }
func (k keys) batches() string            { return "batches:" + k.tag }
func (k keys) wake() string               { return "wake:" + k.tag }
func (k keys) owner(role string) string   { return "owner:" + k.tag + ":" + role }
func (k keys) members(role string) string { return "members:" + k.tag + ":" + role }
func (k keys) meta() string               { return "meta:" + k.tag }
