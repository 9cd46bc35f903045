// Package output keeps what a container writes to its standard output and error: it makes the pipes, or takes
// the terminal, and moves all output to a log that is complete to the byte, even on a full disk, after a
// crash, and while the container is frozen. It knows no container and no engine.
package output

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ptyQuiet is how long a terminal must be silent to count as empty. Data that a process wrote to it reaches
// the other end through a work queue of the kernel (drivers/tty/tty_buffer.c), shortly after the write has
// returned.
const ptyQuiet = 3 * time.Millisecond

// logRetry is the pause before output is written again to a log on a full disk. Meanwhile the container
// waits once its pipe is full, so nothing is lost.
const logRetry = 500 * time.Millisecond

// Files are the paths of a container's log, and of the socket on which runc passes its terminal.
type Files struct{ Log, Console string }

// Output is a container's standard output and error: pipes, or a terminal, and the log that they end in.
type Output struct {
	Names          []string // stdin, stdout and stderr, in CRIU's notation
	Stdout, Stderr *os.File // the container's ends, until runc has them; nil with a terminal

	files   Files
	console *net.UnixListener
	streams []*stream
	done    sync.WaitGroup

	// mu guards reading from the streams together with writing to the log: one without the other loses
	// output.
	mu  sync.Mutex
	log *logWriter
}

// stream is an end that this process reads.
type stream struct {
	name     string
	file     *os.File // non-blocking
	terminal bool
}

// Open makes a container's standard output and error.
func Open(files Files, terminal bool) (*Output, error) {
	s := &Output{files: files}
	if terminal {
		return s, s.listenConsole()
	}
	var err error
	var outName, errName string
	if s.Stdout, outName, err = s.pipe("stdout"); err == nil {
		s.Stderr, errName, err = s.pipe("stderr")
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	s.Names = []string{"/dev/null", outName, errName}
	return s, nil
}

// pipe makes a pipe whose read end becomes a stream. The container's end stays in blocking mode, as
// programs expect.
func (s *Output) pipe(name string) (*os.File, string, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, "", fmt.Errorf("make pipe for %s: %w", name, err)
	}
	end := os.NewFile(uintptr(fds[1]), name)
	if err := s.add(name, fds[0], false); err != nil {
		end.Close()
		return nil, "", err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fds[1], &stat); err != nil {
		end.Close()
		return nil, "", fmt.Errorf("stat pipe for %s: %w", name, err)
	}
	return end, fmt.Sprintf("pipe:[%d]", stat.Ino), nil
}

func (s *Output) add(name string, fd int, terminal bool) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return fmt.Errorf("set %s non-blocking: %w", name, err)
	}
	s.streams = append(s.streams, &stream{name: name, file: os.NewFile(uintptr(fd), name),
		terminal: terminal})
	return nil
}

// listenConsole makes the socket on which runc passes the terminal that it makes in the container.
func (s *Output) listenConsole() error {
	if err := os.RemoveAll(s.files.Console); err != nil {
		return fmt.Errorf("remove old console socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.files.Console, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen for the container's terminal: %w", err)
	}
	s.console = listener
	s.Names = []string{"", "", ""} // CRIU dumps a terminal as a whole
	return nil
}

// HandOver is called when runc has ended successfully: the container now has its ends, and the terminal
// exists.
func (s *Output) HandOver() error {
	if s.console == nil {
		return errors.Join(s.Stdout.Close(), s.Stderr.Close())
	}
	defer s.console.Close()
	if err := s.console.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	conn, err := s.console.AcceptUnix()
	if err != nil {
		return fmt.Errorf("wait for the container's terminal: %w", err)
	}
	defer conn.Close()
	fd, err := receiveDescriptor(conn)
	if err != nil {
		return fmt.Errorf("receive the container's terminal: %w", err)
	}
	return s.add("stdout", fd, true)
}

// receiveDescriptor reads one descriptor from a unix socket.
func receiveDescriptor(conn *net.UnixConn) (int, error) {
	data, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*4))
	_, n, _, _, err := conn.ReadMsgUnix(data, rights)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("%d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return -1, fmt.Errorf("%d descriptors: %w", len(fds), err)
	}
	for _, extra := range fds[1:] {
		unix.Close(extra)
	}
	unix.CloseOnExec(fds[0])
	return fds[0], nil
}

// Follow opens the log and moves output to it from now on.
func (s *Output) Follow() error {
	log, err := openLog(s.files.Log)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.log = log
	s.mu.Unlock()
	for _, one := range s.streams {
		raw, err := one.file.SyscallConn()
		if err != nil {
			return fmt.Errorf("read %s: %w", one.name, err)
		}
		s.done.Go(func() {
			// An error means that the file was closed by this process.
			_ = raw.Read(func(fd uintptr) bool { return s.moveAll(one, int(fd)) })
		})
	}
	return nil
}

// moveAll moves the available output to the log, and reports whether the stream has ended.
func (s *Output) moveAll(one *stream, fd int) bool {
	for {
		ended, err := s.move(one, fd)
		if err == nil {
			return ended
		}
		time.Sleep(logRetry)
	}
}

// move moves a stream's available output to the log. An error means that the log accepts no more at the
// moment.
func (s *Output) move(one *stream, fd int) (ended bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	buffer := make([]byte, maxLogPiece)
	for {
		if err := s.log.flush(); err != nil {
			return false, err
		}
		n, err := unix.Read(fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false, nil
		case err != nil || n <= 0: // a terminal returns EIO when nobody has it open any more
			return true, nil
		default:
			if err := s.log.write(time.Now(), one.name, buffer[:n]); err != nil {
				return false, err
			}
		}
	}
}

// Drain moves all output of a container, which must be frozen, to the log.
func (s *Output) Drain() error {
	for _, one := range s.streams {
		for {
			if err := s.drainOne(one); err != nil {
				return fmt.Errorf("drain %s of the container: %w", one.name, err)
			}
			if !one.terminal || !readable(one.file, ptyQuiet) {
				break
			}
		}
	}
	return nil
}

func (s *Output) drainOne(one *stream) error {
	raw, err := one.file.SyscallConn()
	if err != nil {
		return err
	}
	var moveErr error
	err = raw.Control(func(fd uintptr) { _, moveErr = s.move(one, int(fd)) })
	return errors.Join(err, moveErr)
}

// readable waits for data.
func readable(file *os.File, timeout time.Duration) bool {
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	ready := false
	_ = raw.Control(func(fd uintptr) {
		set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(set, int(timeout.Milliseconds()))
		ready = n > 0 && set[0].Revents&unix.POLLIN != 0
	})
	return ready
}

// Finish moves the last output to the log, after all processes of the container have ended.
func (s *Output) Finish() error {
	err := s.Drain()
	s.Close()
	s.done.Wait()
	return err
}

// Close closes all open files.
func (s *Output) Close() {
	for _, file := range []*os.File{s.Stdout, s.Stderr} {
		if file != nil {
			file.Close()
		}
	}
	if s.console != nil {
		s.console.Close()
	}
	for _, one := range s.streams {
		one.file.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log != nil {
		s.log.close()
	}
}
