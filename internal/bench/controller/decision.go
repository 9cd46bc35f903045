package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller"
	"github.com/godwit/godwit/internal/controller/store"
)

const (
	zones      = 50
	askedP99   = 100 // ms
	slowestOne = 99  // of 100 decisions
)

// fleetStates makes the states of nodes with containers, one in ten of which has a selector or a group.
func fleetStates(nodes, containers int) map[string]*api.NodeState {
	random := rand.New(rand.NewPCG(1, 2))
	states := map[string]*api.NodeState{}
	for i := range nodes {
		states[nodeName(i)] = &api.NodeState{Version: "1", FreeBytes: 8 << 30}
	}
	for i := range containers {
		node := random.IntN(nodes)
		one := &api.NodeContainer{
			Id: fmt.Sprintf("%064x", i), Name: "c" + strconv.Itoa(i), Image: "redis:7", State: "running",
			Address: "10.88.1.1", MemoryBytes: int64(16+random.IntN(500)) << 20,
		}
		switch i % 30 {
		case 0:
			one.Labels = map[string]string{"godwit.nodes": zoneLabel(node)["zone"]}
			one.Labels["godwit.nodes"] = "zone=" + one.Labels["godwit.nodes"]
		case 1:
			one.Labels = map[string]string{"godwit.spread": fmt.Sprint("s", i/300)}
		case 2:
			one.Labels = map[string]string{"godwit.affinity": fmt.Sprint("a", i)}
		}
		state := states[nodeName(node)]
		state.Containers = append(state.Containers, one)
	}
	return states
}

func nodeName(i int) string { return fmt.Sprintf("n%05d", i) }

func zoneLabel(node int) map[string]string {
	return map[string]string{"zone": fmt.Sprint(node % zones)}
}

// decisions measures a decision about the whole cluster after one change, with what is needed to describe
// the cluster.
func decisions(ctx context.Context, result *Result, nodes, containers, count int) error {
	trial, err := controller.NewTrial(ctx, fleetStates(nodes, containers))
	if err != nil {
		return err
	}
	for i := range nodes {
		trial.SetLabels(nodeName(i), zoneLabel(i))
	}
	random := rand.New(rand.NewPCG(3, 4))
	for _, change := range []struct {
		what string
		do   func(node int)
		undo func(node int)
	}{
		{"a drain", func(node int) { trial.SetState(nodeName(node), store.Draining) },
			func(node int) { trial.SetState(nodeName(node), store.Active) }},
		{"the loss of a node", func(node int) { trial.SetConnected(nodeName(node), false) },
			func(node int) { trial.SetConnected(nodeName(node), true) }},
		{"a label", func(node int) { trial.SetLabels(nodeName(node), nil) },
			func(node int) { trial.SetLabels(nodeName(node), zoneLabel(node)) }},
	} {
		var took []time.Duration
		for range count {
			if err := ctx.Err(); err != nil {
				return err
			}
			node := random.IntN(nodes)
			change.do(node)
			began := time.Now()
			trial.Decide()
			took = append(took, time.Since(began))
			change.undo(node)
		}
		slices.Sort(took)
		slow := took[(len(took)-1)*slowestOne/100]
		result.add(fmt.Sprintf("decision after %s, %d nodes and %d containers, p99", change.what, nodes,
			containers), slow.Seconds()*1000, "ms", askedP99)
	}
	return nil
}
