package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/godwit/godwit/internal/bench"
	"github.com/godwit/godwit/internal/bench/page"
)

const benchStudiesLong = `Repeat the experiments of four studies, in Godwit's ways and in those that the studies had, on the same links in one run:

  a  Ma et al., IEEE TMC 2019        a shell's loop; face recognition (OpenCV, in the role of OpenFace)
  b  Puliafito et al., Sensors 2019  a CoAP server (Eclipse Californium) with 75 MB of data that change at 10 or 500 KB/s
  c  Addad et al.                    an idle container with an init; NGINX with a film that somebody watches; 1 Gbit/s
  d  Souza Junior et al., 2020       RabbitMQ with 400 MB of messages, and 100 of 128 kB a second with confirms

Beside what is measured here stand the studies' own figures ("published"), of the machines that they had.

  runc and rsync              runc checkpoint, rsync, runc restore
  criu lazy                   runc checkpoint --lazy-pages, rsync, criu lazy-pages, runc restore --lazy-pages
  podman                      podman container checkpoint --export, rsync, podman container restore --import
  criu pre-dump               runc checkpoint --pre-dump, rsync, runc checkpoint of the rest, rsync, runc restore; only where the
                              kernel has soft-dirty, otherwise its row says so
  stop, rsync, start          of a volume; "rsync, stop, rsync, start" copies it once before
  godwit auto                 godwit migrate, as it is without a mode: what is asked of Godwit is asked of this
  godwit MODE                 godwit migrate --mode MODE; "restart 0" is restart with nothing copied before it stops
  godwit staged MODE          the same, of a container that was staged at the target before the request

All clients are real users of their service and check each answer: the right name for a face, each message that was confirmed, each
piece of the film in time. If anything is lost in a way of Godwit's the benchmark fails. The client of Godwit's containers goes
on asking all the time, from a third node that is near to both; those of the others (but of RabbitMQ, where it connects again) are
gone while they are moved. Beside what was measured stands what the bytes that were sent need at the link's bandwidth.

Images are made from Debian's packages and Maven Central, once; that takes minutes and 4 GB of disk. Then the whole takes
15 hours (a 5, b 3, c half of one, d 6), nearly all of it for slow links; --quick has one run of less, in a quarter of an hour.

So the whole can be measured in pieces: with --json FILE what was measured is in FILE from the first minute on, also if it is interrupted,
and with --resume what is in FILE counts as measured: only what lacks is done, of these studies, workloads, links and ways. A piece
may be as small as one study, one link or one run more; text, FILE and page then have all that was measured so far. That must have been
on the same machine, and it is up to you that it was the same program.`

func newBenchStudiesCommand() *cobra.Command {
	var html string
	return benchInTurns{
		suite: func(ctx context.Context, config bench.Config) (bench.Result, error) {
			result, err := bench.Studies(ctx, config)
			if html != "" && len(result.Rows) > 0 {
				if writeErr := page.WriteFile(result, html); err == nil {
					err = writeErr
				}
			}
			return result, err
		},
		workloads: bench.StudyTitles(), ways: bench.StudyWays(), quick: "one run, of fewer ways, over one link each",
		more: func(flags *pflag.FlagSet, config *bench.Config) {
			flags.StringVar(&html, "html", "", "write a page with charts to this file")
			flags.BoolVar(&config.Resume, "resume", false, "go on with what is in the file of --json")
			flags.StringSliceVar(&config.Studies, "study", nil, "only these: a, b, c, d")
			flags.StringArrayVar(&config.Links, "link", nil, "over this one instead of the studies', such as 20mbit/50ms")
			flags.Lookup("runs").Usage = "how often each way is measured (default 6)"
		},
		command: cobra.Command{
			Use:   "studies",
			Short: "The experiments of four studies, beside their figures",
			Long:  benchStudiesLong,
			Example: `  godwit bench studies --quick --html studies.html
  godwit bench studies --study c --json studies.json
  godwit bench studies --study d --json studies.json --html studies.html --resume
  godwit bench studies --study a --workload "study a: face" --link 20mbit/50ms --way godwit --runs 6`,
		},
	}.make()
}
