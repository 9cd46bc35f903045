package proof

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Proof is what was found out about one volume: whether the other node sees the same.
type Proof struct {
	Shared bool
	Locked bool   // locks of files hold on both nodes
	Same   bool   // files have the same inodes on both nodes
	OneWay bool   // it sees what is written here, but not the other way round
	Unsure bool   // it may see the same, and cannot answer
	Why    string // not
}

// Prover finds out which volumes other nodes share with this one, and answers their questions.
type Prover struct {
	dir     string // of notes which tokens are to be removed
	volumes Volumes
	nodes   Nodes
	log     *slog.Logger
}

// Volumes tells where volumes are. What a peer says of one is checked there.
type Volumes interface {
	VolumePath(of engine.Volume) (string, error)
}

// Nodes are the others.
type Nodes interface {
	Client(node identity.Node) (*grpc.ClientConn, error)
}

// New keeps its notes in a directory, which need not exist.
func New(dir string, volumes Volumes, nodes Nodes, log *slog.Logger) *Prover {
	return &Prover{dir: dir, volumes: volumes, nodes: nodes, log: log}
}

// proofTimeout bounds how long a file system may take to write or find some bytes: one whose server
// is gone never does.
const proofTimeout = 15 * time.Second

// Prove finds out which volumes a node shares with this one. Their tokens are removed when it
// returns, or as soon as their file systems answer again.
func (p *Prover) Prove(ctx context.Context, node identity.Node, volumes []engine.Volume) ([]Proof, error) {
	if len(volumes) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	var proofs []Proof
	done := guard.Go(func() (err error) {
		proofs, err = p.proveAll(ctx, node, volumes)
		return err
	})
	select {
	case err := <-done:
		return proofs, err
	case <-ctx.Done():
		return nil, fmt.Errorf("find out which volumes %s shares: the file system of one of them does not "+
			"answer, here or there: %w",
			node.Name, context.Cause(ctx))
	}
}

// claims are tokens in volumes, with the note that has them removed if this agent cannot.
type claims struct {
	note  string
	files []string // of the tokens, in the volumes' order; "" for none
	made  []*shared.Claim
	why   []string // there is none
	left  error    // a token could not be made, and not be removed
}

func (p *Prover) proveAll(
	ctx context.Context, node identity.Node, volumes []engine.Volume,
) (proofs []Proof, err error) {
	tokens, err := p.claim(volumes)
	if err != nil {
		return nil, err
	}
	defer func() {
		if removed := tokens.remove(); removed != nil {
			p.log.Warn("token of a proof not removed; it is tried again when the agent starts", "error",
				removed)
		}
	}()
	request := &api.ProveRequest{}
	for i, v := range volumes {
		request.Proofs = append(request.Proofs,
			&api.Proof{Volume: EncodeVolume(v), File: filepath.Base(tokens.files[i])})
	}
	client, err := p.nodes.Client(node)
	if err != nil {
		return nil, err
	}
	client.ResetConnectBackoff()
	reply, err := api.NewPeerClient(client).Prove(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("ask %s which volumes it shares: %s", node.Name, api.Plain(err))
	}
	if len(reply.Proven) != len(volumes) {
		return nil, fmt.Errorf("ask %s which volumes it shares: it answered for %d of %d",
			node.Name, len(reply.Proven), len(volumes))
	}
	for i := range volumes {
		proofs = append(proofs, tokens.check(i, reply.Proven[i]))
	}
	return proofs, nil
}

// claim writes a token into each volume. A volume that cannot be written to has none.
func (p *Prover) claim(volumes []engine.Volume) (*claims, error) {
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails (crypto/rand)
	c := &claims{
		files: make([]string, len(volumes)), made: make([]*shared.Claim, len(volumes)),
		why:  make([]string, len(volumes)),
		note: filepath.Join(p.dir, hex.EncodeToString(id)+".json"),
	}
	for i, v := range volumes {
		path, err := p.volumes.VolumePath(v)
		if err != nil {
			return nil, err
		}
		c.files[i] = filepath.Join(path, shared.NewName())
	}
	err := os.MkdirAll(p.dir, 0o700)
	if err == nil {
		err = durable.Save(c.note, c.files)
	}
	if err != nil {
		return nil, fmt.Errorf("note which tokens are to be removed: %w", err)
	}
	for i, file := range c.files {
		if c.made[i], err = shared.NewClaim(filepath.Dir(file), filepath.Base(file)); err != nil {
			c.made[i], c.why[i] = nil, err.Error()
			if errors.Is(err, shared.ErrLeft) {
				c.left = err
			}
		}
	}
	return c, nil
}

// check judges what the other node says about a token.
func (c *claims) check(i int, said *api.Proven) Proof {
	switch {
	case c.made[i] == nil:
		// Of a file system of this machine alone nobody else can have any part.
		local, err := shared.Local(filepath.Dir(c.files[i]))
		return Proof{Why: c.why[i], Unsure: err != nil || !local}
	case said.Token == "":
		if said.Error == "" {
			return Proof{Why: shared.ErrNotShared.Error()}
		}
		return Proof{Why: fmt.Sprintf("at the other node: %.400s", said.Error), Unsure: true}
	}
	answer := shared.Answer{Token: said.Token, Reply: said.Reply, Device: said.Device, Inode: said.Inode}
	if err := c.made[i].Check(answer); err != nil {
		return Proof{OneWay: true, Why: err.Error()}
	}
	return Proof{Shared: true, Locked: said.Locked, Same: c.made[i].SameInode(answer)}
}

// remove removes the tokens and, if none is left, the note.
func (c *claims) remove() error {
	failed := c.left
	for _, made := range c.made {
		if made != nil {
			failed = errors.Join(failed, made.Remove())
		}
	}
	if failed != nil {
		return failed
	}
	return os.Remove(c.note)
}

// Left are the notes that agents have left which ended before they could remove their tokens.
func (p *Prover) Left() []string {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil // There are none.
	}
	var notes []string
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".json") {
			notes = append(notes, filepath.Join(p.dir, entry.Name()))
		}
	}
	return notes
}

// RemoveLeft removes the tokens that notes name. Their file systems may not answer.
func (p *Prover) RemoveLeft(notes []string) {
	for _, note := range notes {
		var left []string
		data, err := os.ReadFile(note)
		if err == nil {
			err = json.Unmarshal(data, &left)
		}
		for _, file := range left {
			err = errors.Join(err, shared.RemoveLeft(filepath.Dir(file), filepath.Base(file)))
		}
		if err == nil {
			err = os.Remove(note)
		}
		if err != nil {
			p.log.Warn("tokens of an earlier agent not removed", "note", note, "error", err)
		}
	}
}

// Answer looks for one token. Which directory that may be is the engine's to say, and which
// file shared's.
func (p *Prover) Answer(one *api.Proof) (shared.Answer, error) {
	if one.Volume == nil {
		return shared.Answer{}, fmt.Errorf("%w: no volume", api.ErrInvalid)
	}
	path, err := p.volumes.VolumePath(DecodeVolume(one.Volume))
	if err != nil {
		return shared.Answer{}, err
	}
	return shared.Find(path, one.File)
}

// EncodeVolume is a volume of an engine as it goes over the wire.
func EncodeVolume(v engine.Volume) *api.Volume {
	return &api.Volume{
		Engine: v.Engine, Name: v.Name, Path: v.Path, ReadOnly: v.ReadOnly, Kind: string(v.Kind),
		Source: v.Source, SizeBytes: v.SizeBytes,
	}
}

// DecodeVolume is the other half of EncodeVolume.
func DecodeVolume(v *api.Volume) engine.Volume {
	return engine.Volume{
		Engine: v.Engine, Name: v.Name, Path: v.Path, ReadOnly: v.ReadOnly, Kind: engine.VolumeKind(v.Kind),
		Source: v.Source, SizeBytes: v.SizeBytes,
	}
}
