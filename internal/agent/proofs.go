package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/wire/identity"
)

// proof is what was found out about one volume: whether the other node sees the same.
type proof struct {
	shared bool
	locked bool   // locks of files hold on both nodes
	same   bool   // files have the same inodes on both nodes
	oneWay bool   // it sees what is written here, but not the other way round
	unsure bool   // it may see the same, and cannot answer
	why    string // not
}

// proofTimeout bounds how long a file system may take to write or find some bytes: one whose server
// is gone never does.
const proofTimeout = 15 * time.Second

// prove finds out which volumes a node shares with this one. Their tokens are removed when it
// returns, or as soon as their file systems answer again.
func (a *Agent) prove(ctx context.Context, node identity.Node, volumes []engine.Volume) ([]proof, error) {
	if len(volumes) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	var proofs []proof
	done := guard.Go(func() (err error) {
		proofs, err = a.proveAll(ctx, node, volumes)
		return err
	})
	select {
	case err := <-done:
		return proofs, err
	case <-ctx.Done():
		return nil, fmt.Errorf("find out which volumes %s shares: the file system of one of them does not answer, here or there: %w",
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

func (a *Agent) proveAll(ctx context.Context, node identity.Node, volumes []engine.Volume) (proofs []proof, err error) {
	tokens, err := a.claim(volumes)
	if err != nil {
		return nil, err
	}
	defer func() {
		if removed := tokens.remove(); removed != nil {
			a.log.Warn("token of a proof not removed; it is tried again when the agent starts", "error", removed)
		}
	}()
	request := &api.ProveRequest{}
	for i, v := range volumes {
		request.Proofs = append(request.Proofs, &api.Proof{Volume: encodeVolume(v), File: filepath.Base(tokens.files[i])})
	}
	client, err := a.peers.Client(node)
	if err != nil {
		return nil, err
	}
	client.ResetConnectBackoff()
	reply, err := api.NewPeerClient(client).Prove(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("ask %s which volumes it shares: %s", node.Name, plain(err))
	}
	if len(reply.Proven) != len(volumes) {
		return nil, fmt.Errorf("ask %s which volumes it shares: it answered for %d of %d", node.Name, len(reply.Proven), len(volumes))
	}
	for i := range volumes {
		proofs = append(proofs, tokens.check(i, reply.Proven[i]))
	}
	return proofs, nil
}

// claim writes a token into each volume. A volume that cannot be written to has none.
func (a *Agent) claim(volumes []engine.Volume) (*claims, error) {
	c := &claims{
		files: make([]string, len(volumes)), made: make([]*shared.Claim, len(volumes)), why: make([]string, len(volumes)),
		note: filepath.Join(a.proofsDir(), randomHex(8)+".json"),
	}
	for i, v := range volumes {
		path, err := a.engines.VolumePath(v)
		if err != nil {
			return nil, err
		}
		c.files[i] = filepath.Join(path, shared.NewName())
	}
	err := os.MkdirAll(a.proofsDir(), 0o700)
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
func (c *claims) check(i int, said *api.Proven) proof {
	switch {
	case c.made[i] == nil:
		// Of a file system of this machine alone nobody else can have any part.
		local, err := shared.Local(filepath.Dir(c.files[i]))
		return proof{why: c.why[i], unsure: err != nil || !local}
	case said.Token == "":
		if said.Error == "" {
			return proof{why: shared.ErrNotShared.Error()}
		}
		return proof{why: fmt.Sprintf("at the other node: %.400s", said.Error), unsure: true}
	}
	answer := shared.Answer{Token: said.Token, Reply: said.Reply, Device: said.Device, Inode: said.Inode}
	if err := c.made[i].Check(answer); err != nil {
		return proof{oneWay: true, why: err.Error()}
	}
	return proof{shared: true, locked: said.Locked, same: c.made[i].SameInode(answer)}
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

func (a *Agent) proofsDir() string { return filepath.Join(a.config.StateDir, "proofs") }

// leftProofs are the notes that agents have left which ended before they could remove their tokens.
func (a *Agent) leftProofs() []string {
	entries, err := os.ReadDir(a.proofsDir())
	if err != nil {
		return nil // There are none.
	}
	var notes []string
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".json") {
			notes = append(notes, filepath.Join(a.proofsDir(), entry.Name()))
		}
	}
	return notes
}

// removeProofs removes the tokens that notes name. Their file systems may not answer.
func (a *Agent) removeProofs(notes []string) {
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
			a.log.Warn("tokens of an earlier agent not removed", "note", note, "error", err)
		}
	}
}

// Prove looks for tokens of another node in volumes of this one, and answers them.
func (s *peerService) Prove(ctx context.Context, request *api.ProveRequest) (*api.ProveReply, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	if len(request.Proofs) > maxMessageParts {
		return nil, wireError(fmt.Errorf("%w: %d volumes, at most %d", errInvalid, len(request.Proofs), maxMessageParts))
	}
	reply := &api.ProveReply{}
	for _, one := range request.Proofs {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		found := &api.Proven{}
		answer, err := s.agent.answerProof(one)
		switch {
		case err == nil:
			found.Token, found.Reply, found.Locked = answer.Token, answer.Reply, answer.Locked
			found.Device, found.Inode = answer.Device, answer.Inode
		case !errors.Is(err, shared.ErrNotShared):
			found.Error = err.Error()
		}
		reply.Proven = append(reply.Proven, found)
	}
	return reply, nil
}

// answerProof looks for one token. Which directory that may be is the engine's to say, and which
// file shared's.
func (a *Agent) answerProof(one *api.Proof) (shared.Answer, error) {
	if one.Volume == nil {
		return shared.Answer{}, fmt.Errorf("%w: no volume", errInvalid)
	}
	path, err := a.engines.VolumePath(decodeVolume(one.Volume))
	if err != nil {
		return shared.Answer{}, err
	}
	return shared.Find(path, one.File)
}

func encodeVolume(v engine.Volume) *api.Volume {
	return &api.Volume{
		Engine: v.Engine, Name: v.Name, Path: v.Path, ReadOnly: v.ReadOnly, Kind: string(v.Kind), Source: v.Source, SizeBytes: v.SizeBytes,
	}
}

func decodeVolume(v *api.Volume) engine.Volume {
	return engine.Volume{
		Engine: v.Engine, Name: v.Name, Path: v.Path, ReadOnly: v.ReadOnly, Kind: engine.VolumeKind(v.Kind), Source: v.Source, SizeBytes: v.SizeBytes,
	}
}
