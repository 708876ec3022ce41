package httpapi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCrowdOf(t *testing.T) {
	for _, tt := range []struct {
		open, limit int64
		want        crowd
	}{
		{0, 800, roomy}, {400, 800, roomy}, {401, 800, busy}, {700, 800, busy}, {701, 800, crowded}, {800, 800, crowded},
		{1, 1, busy}, {2, 2, busy}, {1, 2, roomy},
	} {
		assert.Equal(t, tt.want, crowdOf(tt.open, tt.limit), "%d of %d", tt.open, tt.limit)
	}
}

func TestCrowdPatience(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name     string
		c        crowd
		in, want time.Duration
	}{
		{"roomy idle", roomy, idleTimeout, idleTimeout},
		{"roomy read", roomy, readTimeout, readTimeout},
		{"busy idle", busy, idleTimeout, busyIdle},
		{"busy read", busy, readTimeout, readTimeout},
		{"crowded idle", crowded, idleTimeout, crowdedRead},
		{"crowded read", crowded, readTimeout, crowdedRead},
		{"crowded, nearly over", crowded, time.Second, time.Second},
	} {
		assert.Equal(t, now.Add(tt.want), tt.c.patience(now, now.Add(tt.in)), tt.name)
	}
	assert.True(t, crowded.patience(now, time.Time{}).IsZero(), "no deadline")
}

func TestConnectionLimit(t *testing.T) {
	assert.Positive(t, connectionLimit())
	assert.LessOrEqual(t, connectionLimit(), int64(maxConnections))
	assert.Less(t, connectionLimit(), fileLimit())
}

func TestTidier(t *testing.T) {
	var td tidier
	var got []bool
	for _, open := range []int64{10, 400, 10, 2000, 1500, 900, 900, 900, 900, 300, 3000, 0, 0, 0, 0} {
		got = append(got, td.look(open))
	}
	assert.Equal(t, []bool{
		false, false, false, // no crowd
		false, false, // still there
		true, true, true, // gone
		false, true, // and again, 600 fewer
		true, true, true, true, // a crowd that came and went meanwhile
		false,
	}, got)
}
