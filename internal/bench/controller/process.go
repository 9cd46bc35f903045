package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller"
	"github.com/godwit/godwit/internal/wire/pinned"
)

const (
	startTimeout = time.Minute
	stopTimeout  = 20 * time.Second
	pollEvery    = 50 * time.Millisecond
	// ticks is how often the kernel counts CPU time in a second (USER_HZ, proc(5)).
	ticks = 100
)

// process is the controller under test.
type process struct {
	cmd   *exec.Cmd
	log   *os.File
	admin api.ControllerAdminClient
	close func() error
}

// start runs the controller until it leads.
func start(ctx context.Context, program, directory, address string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(directory, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	run := filepath.Join(directory, "run")
	cmd := exec.CommandContext(ctx, program, "run", "--run", run, "--data", filepath.Join(directory, "data"),
		"--listen", address)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the controller: %w", err), log.Close())
	}
	client, err := grpc.NewClient("unix://"+controller.SocketPath(run),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait(), log.Close())
	}
	p := &process{cmd, log, api.NewControllerAdminClient(client), client.Close}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		_, err := p.admin.ListTokens(ctx, &api.ListTokensRequest{})
		if err == nil {
			return p, nil
		}
		select {
		case <-ctx.Done():
			said, _ := os.ReadFile(log.Name())
			return nil, errors.Join(fmt.Errorf("the controller does not lead: %w; it wrote: %s", err, said),
				p.stop())
		case <-time.After(pollEvery):
		}
	}
}

// stop ends the controller.
func (p *process) stop() error {
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	kill := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
	waited := p.cmd.Wait()
	kill.Stop()
	if errors.As(waited, new(*exec.ExitError)) {
		waited = nil // it was asked to end
	}
	return errors.Join(err, waited, p.close(), p.log.Close())
}

// token makes a token.
func (p *process) token(ctx context.Context, kind, name string) (pinned.Token, error) {
	reply, err := p.admin.CreateToken(ctx, &api.CreateTokenRequest{Kind: kind, Name: name})
	if err != nil {
		return pinned.Token{}, fmt.Errorf("make a token: %w", err)
	}
	return pinned.ParseToken(reply.Token)
}

// memory is the resident memory of the controller, in bytes.
func (p *process) memory() (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return residentIn(string(data))
}

func residentIn(status string) (float64, error) {
	for line := range strings.Lines(status) {
		if text, found := strings.CutPrefix(line, "VmRSS:"); found {
			text = strings.TrimSuffix(strings.TrimSpace(text), "kB")
			kib, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("status of a process has no VmRSS: %w", fs.ErrNotExist)
}

// cpu is the CPU time that the controller has used.
func (p *process) cpu() (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return cpuIn(string(data))
}

func cpuIn(stat string) (time.Duration, error) {
	// The name of the program, in parentheses, may have spaces in it. Fields 14 and 15 are after it.
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 13 {
		return 0, errors.New("stat of a process has too few fields")
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	system, systemErr := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticks, errors.Join(err, systemErr)
}
