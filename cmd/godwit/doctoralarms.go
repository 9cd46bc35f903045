package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/doctor"
)

// alarmPatience bounds how long doctor waits for the agent.
const alarmPatience = 10 * time.Second

// alarmCheck asks this node's agent for its alarms, if an agent runs and this user may ask it.
func alarmCheck(cmd *cobra.Command) func(context.Context) (doctor.Requirement, bool) {
	return func(ctx context.Context) (doctor.Requirement, bool) {
		ctx, cancel := context.WithTimeout(ctx, alarmPatience)
		defer cancel()
		var alarms []*api.Alarm
		err := withAgent(cmd, func(agent api.AgentClient) error {
			reply, err := agent.List(ctx, &api.ListRequest{})
			alarms = reply.GetAlarms()
			return err
		})
		if err != nil { // doctor also runs on machines without an agent
			return doctor.Requirement{}, false
		}
		return alarmRequirement(alarms)
	}
}

// alarmRequirement returns the report's line with the alarms; false if there are none.
func alarmRequirement(alarms []*api.Alarm) (doctor.Requirement, bool) {
	texts := make([]string, 0, len(alarms))
	for _, one := range alarms {
		texts = append(texts, fmt.Sprintf("%s (%.12s): %s", one.Name, one.Container, one.Text))
	}
	return doctor.Requirement{
		Name: "each container at one node", Level: doctor.Required, Status: doctor.Missing,
		Detail: strings.Join(texts, "; "),
		Lost:   "the promise that a container runs once, at one node",
		Advice: doctor.Advice{General: "follow the instruction given for each container"},
	}, len(alarms) > 0
}
