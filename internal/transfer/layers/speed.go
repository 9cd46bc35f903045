package layers

import (
	"sync"
	"time"

	"github.com/godwit/godwit/internal/files/fetch"
)

// What is expected of a holder of layers of which nothing is known, in bits per second.
const (
	registryGuess = 50e6
	nearGuess     = 500e6 // in the same building, by its round trip
	cityGuess     = 100e6
	countryGuess  = 30e6
	farGuess      = 10e6
)

// guessSpeed is what a node may send, by what was measured of the way to it. Bandwidth was measured
// in the other direction.
func guessSpeed(rtt time.Duration, bandwidth float64) float64 {
	switch {
	case bandwidth > 0:
		return bandwidth
	case rtt == 0:
		return farGuess
	case rtt < 3*time.Millisecond:
		return nearGuess
	case rtt < 15*time.Millisecond:
		return cityGuess
	case rtt < 60*time.Millisecond:
		return countryGuess
	}
	return farGuess
}

// speeds are what holders of layers have sent here, so that the next fetch knows whom to ask.
type speeds struct {
	mu   sync.Mutex
	seen map[string]speed // by kind and name
}

type speed struct {
	bitsPerSecond float64
	at            time.Time
}

const (
	// speedLasts is how long an experience counts: then it is time for another one.
	speedLasts = 10 * time.Minute
	// enoughSeen is how much must have come for a speed to be one.
	enoughSeen = 4 << 20
	// failedSpeed is expected of who failed lately: it is asked when nobody else has the layer.
	failedSpeed = 1
	maxSpeeds   = 1024
)

func newSpeeds() *speeds { return &speeds{seen: map[string]speed{}} }

// of is what is expected of a holder: what was seen lately, or else a guess.
func (s *speeds) of(holder *fetch.Holder, guess float64) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, ok := s.seen[speedKey(holder.Kind, holder.Name)]
	if !ok || time.Since(seen.at) > speedLasts {
		return guess
	}
	return seen.bitsPerSecond
}

// learn remembers how fast holders were, and which have failed.
func (s *speeds) learn(all []fetch.Taken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) > maxSpeeds {
		clear(s.seen) // There are not so many nodes.
	}
	for _, taken := range all {
		key := speedKey(taken.Kind, taken.Name)
		switch {
		case taken.Failed != nil:
			s.seen[key] = speed{failedSpeed, time.Now()}
		case taken.Bytes >= enoughSeen:
			s.seen[key] = speed{taken.Speed(), time.Now()}
		}
	}
}

// speedKey names a holder. A node is the same whatever it has to do with the image.
func speedKey(kind, name string) string {
	if kind != fetch.KindRegistry {
		kind = kindNode
	}
	return kind + " " + name
}
