package bench

import (
	"context"
	"time"

	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/services"
	"github.com/godwit/godwit/internal/lab/workload/player"
)

// moveBy moves the container to the other node, and returns the measurements and the client's answers from
// a second before the request on.
func moveBy(ctx context.Context, g *services.Container, way string) ([]results.Measurement, [][2]float64,
	error) {
	mode, staged := wayParts(way)
	if err := services.AwaitAnswers(ctx, g.Client); err != nil {
		return nil, nil, err
	}
	var measured []results.Measurement
	if staged {
		took, err := stage(ctx, g)
		if err != nil {
			return nil, nil, err
		}
		measured = append(measured, took...)
	}
	stopped := stopsOf(g.Client)
	requested := time.Now()
	more, err := request(ctx, g, mode)
	if err != nil {
		return nil, nil, err
	}
	measured = append(measured, more...)
	if err := g.AwaitFilled(ctx); err != nil {
		return nil, nil, err
	}
	if err := services.AwaitAnswers(ctx, g.Client); err != nil {
		return nil, nil, err
	}
	measured = append(measured, results.Measurement{results.Gap, g.Client.Answers().Gap(requested).Seconds()})
	if _, plays := g.Client.(*player.Player); plays {
		measured = append(measured,
			results.Measurement{metricStill, stopsOf(g.Client).Seconds - stopped.Seconds})
	}
	return measured, points(g.Client, requested), nil
}

// stopsOf returns how often a film stood still, if the client plays one.
func stopsOf(c services.Client) player.Stops {
	if p, plays := c.(*player.Player); plays {
		return p.Stops()
	}
	return player.Stops{}
}

func points(c services.Client, requested time.Time) [][2]float64 {
	all := [][2]float64{}
	for _, one := range c.Answers().Since(requested.Add(-time.Second)) {
		all = append(all, [2]float64{one.At.Sub(requested).Seconds(), one.At.Sub(one.Asked).Seconds()})
	}
	return all
}
