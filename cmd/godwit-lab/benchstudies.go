package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/godwit/godwit/internal/bench/page"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/studies"
	"github.com/godwit/godwit/internal/bench/testbed"
)

const benchStudiesLong = `Repeat the experiments of four studies, with Godwit and with the studies' own
ways, on the same links in one run:

  a  Ma et al., IEEE TMC 2019        a shell's loop; face recognition (OpenCV in place of OpenFace)
  b  Puliafito et al., Sensors 2019  a CoAP server (Eclipse Californium) with 75 MB of data that change at 10
                                     or 500 KB/s
  c  Addad et al.                    an idle container with an init; NGINX streaming a film; 1 Gbit/s
  d  Souza Junior et al., 2020       RabbitMQ with 400 MB of messages, and 100 of 128 kB a second with
                                     confirms

The results stand beside the studies' own figures ("published"), which come from the studies' machines.

  runc and rsync              runc checkpoint, rsync, runc restore
  criu lazy                   runc checkpoint --lazy-pages, rsync, criu lazy-pages, runc restore --lazy-pages
  podman                      podman container checkpoint --export, rsync, podman container restore --import
  criu pre-dump               runc checkpoint --pre-dump, rsync, runc checkpoint of the rest, rsync, runc
                              restore; needs soft-dirty in the kernel, otherwise its row says so
  stop, rsync, start          copies a volume; "rsync, stop, rsync, start" copies it once before, too
  godwit auto                 godwit migrate without a mode: the goals for Godwit apply to this way
  godwit MODE                 godwit migrate --mode MODE; "restart 0" copies nothing before the stop
  godwit staged MODE          the same, for a container that was staged at the target before the request

All clients are real users of their service and check each answer: the right name for a face, each confirmed
message, each piece of the film in time. If Godwit loses anything, the benchmark fails. Clients of Godwit's
containers go on asking all the time, from a third node near both. Clients of the other ways are gone during
the move, except that RabbitMQ's client reconnects. For comparison, the tables also show how long the bytes
sent would take at the link's full bandwidth.

The benchmark builds images from Debian packages and Maven Central once, which takes minutes and 4 GB of
disk. The rest takes 15 hours (a 5, b 3, c half an hour, d 6), nearly all of it for slow links; --quick does
one smaller run in a quarter of an hour.

You can measure in pieces. With --json FILE, results are in FILE from the first minute on, even if the run is
interrupted. With --resume, results in FILE count as measured, and only the missing ones of the selected
studies, workloads, links and ways are measured. A piece may be as small as one study, one link or one more
run. The text, FILE and page then contain everything measured so far. All pieces must come from the same
machine and the same builds of godwit and godwit-lab, which you must ensure.`

func newBenchStudiesCommand() *cobra.Command {
	var html string
	return benchInTurns{
		suite: func(ctx context.Context, config testbed.Config) (results.Result, error) {
			result, err := studies.Run(ctx, config)
			if html != "" && len(result.Rows) > 0 {
				if writeErr := page.WriteFile(result, html); err == nil {
					err = writeErr
				}
			}
			return result, err
		},
		workloads: studies.Names(), ways: studies.Ways(),
		quick: "one run, of fewer ways, over one link each",
		more: func(flags *pflag.FlagSet, config *testbed.Config) {
			flags.StringVar(&html, "html", "", "write a page with charts to this file")
			flags.BoolVar(&config.Resume, "resume", false, "measure only what the --json file lacks")
			flags.StringSliceVar(&config.Studies, "study", nil, "repeat only these studies: a, b, c, d")
			flags.StringArrayVar(&config.Links, "link", nil,
				"use this link instead of the studies' links, such as 20mbit/50ms")
			flags.Lookup("runs").Usage = "how often to measure each way (default 6)"
		},
		command: cobra.Command{
			Use:   "studies",
			Short: "Repeat the experiments of four studies and compare the figures",
			Long:  benchStudiesLong,
			Example: `  godwit-lab bench studies --quick --html studies.html
  godwit-lab bench studies --study c --json studies.json
  godwit-lab bench studies --study d --json studies.json --html studies.html --resume
  godwit-lab bench studies --study a --workload "study a: face" --link 20mbit/50ms --way godwit --runs 6`,
		},
	}.make()
}
