package audit

import "paredao/internal/vote"

// frameSet is a set of frame ids. A flusher numbers its frames one by one, so a
// bit for each is enough: 1.5 billion votes in frames of a thousand take less
// than a megabyte.
type frameSet map[string]map[uint64]uint64

// add puts an id into the set and tells whether it was new.
func (s frameSet) add(id string) (bool, error) {
	f, err := vote.ParseFrameID(id)
	if err != nil {
		return false, err
	}
	words := s[f.Flusher]
	if words == nil {
		words = map[uint64]uint64{}
		s[f.Flusher] = words
	}
	bit := uint64(1) << (f.Seq % 64)
	old := words[f.Seq/64]
	words[f.Seq/64] = old | bit
	return old&bit == 0, nil
}

// join puts all of another set into the set.
func (s frameSet) join(other frameSet) {
	for flusher, more := range other {
		words := s[flusher]
		if words == nil {
			words = make(map[uint64]uint64, len(more))
			s[flusher] = words
		}
		for at, bits := range more {
			words[at] |= bits
		}
	}
}

// has tells whether an id is in the set.
func (s frameSet) has(id string) bool {
	f, err := vote.ParseFrameID(id)
	return err == nil && s[f.Flusher][f.Seq/64]&(1<<(f.Seq%64)) != 0
}
