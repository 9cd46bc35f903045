package services

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// engine runs containers on nodes.
type engine interface {
	name() string
	prefix() string // of its containers, in Godwit's references
	load(ctx context.Context, node string, i image) error
	run(ctx context.Context, node string, s service, i image) error
	address(ctx context.Context, node, container string) (string, error)
	logs(ctx context.Context, node, container string) (string, error)
	exec(ctx context.Context, node, container string, command ...string) (string, error)
	// remove removes a container and its image from a node, if they exist.
	remove(ctx context.Context, node, container string, i image) error
}

// engines returns all engines, by name.
func engines() map[string]engine {
	return map[string]engine{"embedded": embedded{}, "docker": &docker{}}
}

// embedded is Godwit's own engine.
type embedded struct{}

func (embedded) name() string   { return "embedded" }
func (embedded) prefix() string { return "" }

func (embedded) load(ctx context.Context, node string, i image) error {
	return loadInto(ctx, node, i, "godwit", "image", "load", "-")
}

func (embedded) run(ctx context.Context, node string, s service, i image) error {
	flags, err := asUsers(s, i)
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"godwit", "run", "--detach", "--name", s.name}, flags, s.flags,
		[]string{i.reference()}, s.command)
	_, err = world.Exec(ctx, node, args...)
	return err
}

func (embedded) address(ctx context.Context, node, container string) (string, error) {
	out, err := world.Exec(ctx, node, "godwit", "inspect", container)
	if err != nil {
		return "", err
	}
	var inspected struct {
		Definition struct {
			Network struct {
				Address string `json:"address"`
			} `json:"network"`
		} `json:"definition"`
	}
	err = json.Unmarshal([]byte(out), &inspected)
	return inspected.Definition.Network.Address, err
}

func (embedded) logs(ctx context.Context, node, container string) (string, error) {
	return world.Exec(ctx, node, "sh", "-c", `exec godwit logs --tail 30 "$1" 2>&1`, "sh", container)
}

func (embedded) exec(ctx context.Context, node, container string, command ...string) (string, error) {
	return world.Exec(ctx, node, append([]string{"godwit", "exec", container}, command...)...)
}

func (embedded) remove(ctx context.Context, node, container string, i image) error {
	for _, each := range []struct {
		list    []string
		remove  []string
		present string
	}{
		{[]string{"godwit", "ps", "--all"}, []string{"godwit", "rm", "--force", container}, container},
		{[]string{"godwit", "image", "ls"}, []string{"godwit", "image", "rm", i.reference()}, i.reference()},
	} {
		out, err := world.Exec(ctx, node, each.list...)
		if err != nil {
			return err
		}
		if !strings.Contains(out, each.present) {
			continue
		}
		if _, err := world.Exec(ctx, node, each.remove...); err != nil {
			return err
		}
	}
	return nil
}

// loadInto pipes an image into a command in a node.
func loadInto(ctx context.Context, node string, i image, command ...string) error {
	cmd, err := world.Command(ctx, node, command...)
	if err != nil {
		return err
	}
	reader, writer := io.Pipe()
	go func() {
		buffered := bufio.NewWriterSize(writer, 1<<20)
		err := i.save(buffered)
		if err == nil {
			err = buffered.Flush()
		}
		_ = writer.CloseWithError(err)
	}()
	cmd.Stdin = reader
	out, err := cmd.CombinedOutput()
	_ = reader.Close() // so that the writer ends if not everything was read
	if err != nil {
		return fmt.Errorf("load the image of %s on %s: %w: %s", i.name, node, err, lastOf(string(out)))
	}
	return nil
}

// asUsers returns flags that make a service's processes appear to run as their proper users. An agent
// without CAP_SYS_RESOURCE, as on some virtual machines, may not move processes of users other than root:
// there all processes are root's, and a library tells them otherwise. The data that they hold, write and
// send is the same.
func asUsers(s service, i image) ([]string, error) {
	if i.lab != "" { // everything belongs to root
		return nil, nil
	}
	may, err := world.movesUsers()
	if err != nil {
		return nil, err
	}
	if may {
		if s.user == "" {
			return nil, nil
		}
		return []string{"--user", s.user}, nil
	}
	flags := []string{"--env", "LD_PRELOAD=libuid_wrapper.so", "--env", "UID_WRAPPER=1", "--env",
		"UID_WRAPPER_ROOT=1"}
	if s.user == "" {
		return flags, nil
	}
	uid, gid, err := i.user(s.user)
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"R", "E", "S"} {
		flags = append(flags, "--env", "UID_WRAPPER_INITIAL_"+kind+"UID="+uid, "--env",
			"UID_WRAPPER_INITIAL_"+kind+"GID="+gid)
	}
	return append(flags, "--env", "UID_WRAPPER_INITIAL_GROUPS="+gid, "--env",
		"UID_WRAPPER_INITIAL_GROUPS_COUNT=1"), nil
}

// user finds a user's ids in an image.
func (i image) user(name string) (uid, gid string, err error) {
	users, err := os.ReadFile(filepath.Join(i.users, "etc/passwd"))
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(users)) {
		if fields := strings.Split(line, ":"); len(fields) > 3 && fields[0] == name {
			return fields[2], fields[3], nil
		}
	}
	return "", "", fmt.Errorf("image of %s: there is no user %s", i.name, name)
}
