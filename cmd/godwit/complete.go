package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// completionPatience is how long a user who presses Tab waits for an agent.
const completionPatience = time.Second

// completeNames makes the shell offer names for the arguments of a command that the agent knows, and no
// files where the command takes no more arguments.
func completeNames(cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		completeNames(child)
	}
	wanted := placeholders(cmd.Use)
	if !cmd.Runnable() || cmd.ValidArgsFunction != nil || len(cmd.ValidArgs) > 0 {
		return
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string,
		cobra.ShellCompDirective) {
		known := namesOf(placeholderAt(wanted, len(args)), cmd.Name())
		if known == nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		given := func(name string) bool {
			name, _, _ = strings.Cut(name, "\t")
			return slices.Contains(args, name)
		}
		return slices.DeleteFunc(askAgent(cmd, known), given), cobra.ShellCompDirectiveNoFileComp
	}
}

// lister lists names that the agent knows.
type lister func(context.Context, api.AgentClient) ([]string, error)

// askAgent returns the names that the agent knows, or none on an error: a user who presses Tab reads no
// errors.
func askAgent(cmd *cobra.Command, known lister) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	var names []string
	err := withAgent(cmd, func(agent api.AgentClient) (err error) {
		names, err = known(ctx, agent)
		return err
	})
	if err != nil {
		return nil
	}
	return names
}

// completeNodes makes the shell offer nodes for a flag.
func completeNodes(cmd *cobra.Command, flag string) {
	offer := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return askAgent(cmd, nodeNames), cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, offer); err != nil {
		panic(err) // only if the flag does not exist
	}
}

// completeWords makes the shell offer words for a flag.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // only if the flag does not exist
	}
}

// placeholders are the arguments in a usage such as "exec [flags] CONTAINER COMMAND [ARG...]", up
// to its first flag.
func placeholders(use string) []string {
	var found []string
	for _, word := range strings.Fields(use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		if word != "[flags]" {
			found = append(found, strings.Trim(word, "[]"))
		}
	}
	return found
}

// placeholderAt returns the placeholder of an argument; the last placeholder may stand for many arguments.
// "" means that the command takes no more arguments.
func placeholderAt(wanted []string, position int) string {
	if last := len(wanted) - 1; position > last && last >= 0 && strings.HasSuffix(wanted[last], "...") {
		position = last
	}
	if position >= len(wanted) {
		return ""
	}
	return strings.TrimSuffix(wanted[position], "...")
}

// namesOf returns the lister for a placeholder of a command; nil if the agent knows no such names.
func namesOf(placeholder, command string) lister {
	switch placeholder {
	case "":
		return func(context.Context, api.AgentClient) ([]string, error) { return nil, nil }
	case "CONTAINER":
		return containerNames
	case "VOLUME":
		return volumeNames
	case "NODE":
		return nodeNames
	case "IMAGE":
		return imageNames
	case "MIGRATION":
		return func(ctx context.Context, agent api.AgentClient) ([]string, error) {
			list, err := reports(ctx, agent)
			return migrationNames(list, command), err
		}
	}
	return nil
}

func containerNames(ctx context.Context, agent api.AgentClient) ([]string, error) {
	reply, err := agent.List(ctx, &api.ListRequest{All: true})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, document := range reply.ContainersJson {
		var c engine.Container
		if err := json.Unmarshal(document, &c); err != nil {
			return nil, err
		}
		names = append(names, c.Definition.Name+"\t"+string(c.State))
	}
	return names, nil
}

func imageNames(ctx context.Context, agent api.AgentClient) ([]string, error) {
	reply, err := agent.ListImages(ctx, &api.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, image := range reply.Images {
		names = append(names, image.Names...)
	}
	return names, nil
}

func nodeNames(ctx context.Context, agent api.AgentClient) ([]string, error) {
	reply, err := agent.Nodes(ctx, &api.NodesRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, node := range reply.Nodes {
		if !node.Self {
			names = append(names, node.Name)
		}
	}
	return names, nil
}

// migrationNames returns the migrations that a command may be about, the latest first. A migration that has
// ended can no longer be changed.
func migrationNames(list []migration.Report, command string) []string {
	ended := func(r migration.Report) bool {
		return r.Result != migration.ResultRuns && r.Result != migration.ResultDoubt
	}
	var names []string
	for _, r := range slices.Backward(list) {
		if ended(r) && slices.Contains([]string{"set", "cancel", "switch", "resolve"}, command) {
			continue
		}
		names = append(names, r.Migration+"\t"+r.Container+": "+r.Source+" -> "+r.Target+
			", "+string(r.Result))
	}
	return names
}
