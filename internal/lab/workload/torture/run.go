package torture

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Ready is the line that the workload prints when it begins.
const Ready = "ready"

// Run is the workload. It returns when it is asked to end (SIGTERM).
func Run(args []string, out io.Writer) error {
	config, err := parse(args)
	if err != nil {
		return fmt.Errorf("%s: %w", Command, err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	if config.Processes > 1 {
		gang, err := Start("/proc/self/exe", config)
		if err != nil {
			return fmt.Errorf("%s: %w", Command, err)
		}
		fmt.Fprintln(out, Ready)
		go gang.forward(config.Tell, out)
		<-end
		return gang.Kill()
	}
	if err := confine(&config); err != nil {
		return fmt.Errorf("%s: %w", Command, err)
	}
	unix.Umask(0)
	fmt.Fprintln(out, Ready)
	return newWorker(config).work(end, out)
}

// confine makes the directory the root of this process. Otherwise the random operations would affect the
// machine: links are made, renamed and followed, so a path that begins in the directory may lead anywhere.
func confine(config *Config) error {
	if err := unix.Chroot(config.Dir); err != nil {
		return fmt.Errorf("make %s the root: %w", config.Dir, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	config.Dir = "/."
	return nil
}

// worker is one process. It knows nothing of the directory: it chooses paths at random, and works on
// whatever is there.
type worker struct {
	chooser
	open []*os.File
	maps [][]byte
}

func newWorker(config Config) *worker {
	return &worker{chooser: newChooser(config)}
}

// deed is one of the operations; often is its relative frequency.
type deed struct {
	often int
	do    func(w *worker) error
}

func deeds() []deed {
	return []deed{
		{60, (*worker).create}, {60, (*worker).overwrite}, {20, (*worker).append}, {20, (*worker).truncate},
		{15, (*worker).punch}, {10, (*worker).allocate}, {6, (*worker).shift}, {40, (*worker).mapFile},
		{120, (*worker).poke},
		{40, (*worker).replace}, {15, (*worker).hold}, {40, (*worker).writeHeld}, {15, (*worker).silent},
		{10, (*worker).read},
		{20, (*worker).makeDirectory}, {10, (*worker).removeDirectory}, {4, (*worker).replaceDirectory},
		{30, (*worker).unlink},
		{30, (*worker).rename}, {10, (*worker).exchange}, {8, (*worker).renameDirectory},
		{25, (*worker).link},
		{8, (*worker).symlink}, {6, (*worker).special}, {4, (*worker).unnamed},
		{15, (*worker).chmod}, {10, (*worker).chown}, {10, (*worker).times}, {20, (*worker).setAttribute},
		{10, (*worker).removeAttribute}, {4, (*worker).lock}, {8, (*worker).unlock},
	}
}

// work continues until a signal comes.
func (w *worker) work(end <-chan os.Signal, out io.Writer) error {
	all, total := deeds(), 0
	for _, d := range all {
		total += d.often
	}
	p := pace{rate: w.Rate, begin: time.Now()}
	for done := 1; ; done++ {
		select {
		case <-end:
			return nil
		default:
		}
		if err := expected(w.choose(all, total).do(w)); err != nil {
			return fmt.Errorf("%s: %w", Command, err)
		}
		if w.Tell > 0 && done%w.Tell == 0 {
			if _, err := out.Write([]byte{'.'}); err != nil {
				return err
			}
		}
		p.next()
	}
}

func (w *worker) choose(all []deed, total int) deed {
	n := w.random.IntN(total)
	for _, d := range all {
		if n -= d.often; n < 0 {
			return d
		}
	}
	return all[0]
}

// pace keeps to a rate. It does not make up for operations that it missed while the process could not run.
type pace struct {
	rate  int
	begin time.Time
	done  int
}

func (p *pace) next() {
	if p.rate == 0 {
		return
	}
	p.done++
	early := time.Until(p.begin.Add(time.Duration(p.done) * time.Second / time.Duration(p.rate)))
	switch {
	case early > time.Millisecond:
		time.Sleep(early)
	case early < -time.Second:
		p.begin, p.done = time.Now(), 0
	}
}

// expected ignores errors that other processes in the same directory cause.
func expected(err error) error {
	for _, usual := range []error{
		unix.ENOENT, unix.EEXIST, unix.ENOTDIR, unix.EISDIR, unix.ENOTEMPTY, unix.EPERM, unix.EACCES,
		unix.EINVAL, unix.ELOOP, unix.EMLINK,
		unix.ENODATA, unix.EOPNOTSUPP, unix.ENXIO, unix.EBUSY, unix.EXDEV, unix.ETXTBSY, unix.ENOSPC,
		unix.ENAMETOOLONG, unix.EBADF,
		unix.ENODEV, unix.ESPIPE, unix.EFBIG, unix.E2BIG, unix.ERANGE,
	} {
		if errors.Is(err, usual) {
			return nil
		}
	}
	return err
}
