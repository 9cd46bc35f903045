package wireguard

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

const (
	ready = "ready"
	// controlVersion is the version of the messages between process and agent that the configuration
	// protocol does not have.
	controlVersion = "1"
	// mostProcessors limits the processors that the process uses.
	mostProcessors = 4
)

// ownVersion is the version of the process that this program would start. It includes the version of the
// module that implements WireGuard.
func ownVersion() string {
	const module = "golang.zx2c4.com/wireguard"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, one := range info.Deps {
			if one.Path == module {
				return controlVersion + " " + one.Version
			}
		}
	}
	return controlVersion
}

// Main runs the process of a device. Its arguments are NAME SOCKET MTU. It returns when the device is
// removed.
func Main(args []string) int {
	pipe := os.NewFile(readyFD, "ready")
	err := run(args, func() error {
		_, err := io.WriteString(pipe, ready)
		return errors.Join(err, pipe.Close())
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "godwit:", err)
		_, _ = fmt.Fprintln(pipe, err)
		return 1
	}
	return 0
}

func run(args []string, ready func() error) error {
	const wanted = 3
	if len(args) != wanted {
		return fmt.Errorf("%d arguments, want %d", len(args), wanted)
	}
	name, socket := args[0], args[1]
	mtu, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	// startProcess starts it under another name.
	if err := os.WriteFile("/proc/self/comm", []byte("godwit"), 0); err != nil {
		return fmt.Errorf("name the process: %w", err)
	}
	runtime.GOMAXPROCS(min(runtime.NumCPU(), mostProcessors))
	opened, err := openTUN(name, mtu)
	if err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("control socket: %w", err)
	}
	listener, err := net.Listen("unix", socket) // in a directory of root
	if err == nil {
		err = os.Chmod(socket, 0o600)
	}
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	dev := device.NewDevice(opened, conn.NewDefaultBind(), newLogger())
	go answer(listener, dev)
	if err := ready(); err != nil {
		return err
	}
	awaitEnd(dev, socket)
	return listener.Close()
}

// lookEvery is how often the process checks whether it can still be reached.
const lookEvery = 10 * time.Second

// awaitEnd waits until the device is removed, or until the process is unreachable because its socket is
// gone or belongs to another process.
func awaitEnd(dev *device.Device, socket string) {
	own, err := os.Stat(socket)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for err == nil {
		select {
		case <-dev.Wait():
			return
		case <-ticker.C:
			var now os.FileInfo
			if now, err = os.Stat(socket); err == nil && !os.SameFile(own, now) {
				err = fs.ErrNotExist
			}
		}
	}
	dev.Close()
}

// answer serves the control socket. A client that connects and sends nothing learns when the process ends.
func answer(listener net.Listener, dev *device.Device) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go handle(connection, dev)
	}
}

// handle answers requests for the version itself, and passes all others to WireGuard.
func handle(connection net.Conn, dev *device.Device) {
	reader := bufio.NewReader(connection)
	first, err := reader.ReadSlice('\n')
	if err != nil || string(first) == "version=1\n" {
		_, _ = fmt.Fprintf(connection, "version=%s\nerrno=0\n\n", ownVersion())
		_ = connection.Close()
		return
	}
	request := &peeked{Conn: connection, reader: io.MultiReader(strings.NewReader(string(first)), reader)}
	if string(first) == "set=1\n" {
		request.before = dev.Up
	}
	dev.IpcHandle(request)
}

// peeked is a connection of which some bytes were read ahead. The device is brought up before the first
// answer to a change of the configuration, because its port is known by then.
type peeked struct {
	net.Conn
	reader io.Reader
	before func() error
}

func (p *peeked) Read(to []byte) (int, error) { return p.reader.Read(to) }

func (p *peeked) Write(answer []byte) (int, error) {
	if p.before != nil {
		if err := p.before(); err != nil {
			return 0, err
		}
	}
	return p.Conn.Write(answer)
}

// logEvery keeps the log small. The log's directory is in memory, and WireGuard logs each packet that it
// cannot send.
const logEvery = time.Second

// newLogger logs errors, at most one in each interval of logEvery.
func newLogger() *device.Logger {
	var mu sync.Mutex
	var last time.Time
	return &device.Logger{Verbosef: device.DiscardLogf, Errorf: func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(last) >= logEvery {
			last = now
			fmt.Fprintf(os.Stderr, now.UTC().Format(time.RFC3339)+" "+format+"\n", args...)
		}
	}}
}
