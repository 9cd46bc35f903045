package controller

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/controller/intake"
	"github.com/godwit/godwit/internal/controller/store"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/pinned"
)

const (
	nodeTokenLifetime = 15 * time.Minute
	maxTokenLifetime  = 10 * 365 * 24 * time.Hour
	maxTokens         = 10_000
	maxUserBytes      = 64
	// tokenIDDigits of a token's hash are its id. They say nothing about the secret.
	tokenIDDigits = 12
	// Useless tokens are kept for a while, so that who uses them hears why they are useless.
	keepJoinTokens = time.Hour
	keepUserTokens = 30 * 24 * time.Hour
	sweepEvery     = time.Minute
)

// tokens makes and removes the tokens of the book, in the store first.
type tokens struct {
	book        *tokenBook
	records     records
	cluster     sync.Locker // of what the cluster knows: a node that joins spends a token
	watchers    *watchers
	log         *slog.Logger
	now         func() time.Time
	fingerprint pinned.Fingerprint // of the controller's certificate
	swept       time.Time          // when useless tokens were last removed
}

// create makes a token, of which the store has only a hash.
func (t *tokens) create(ctx context.Context, request *api.CreateTokenRequest) (string, error) {
	record := store.Token{Kind: store.TokenKind(request.Kind), Name: request.Name, Created: t.now().UTC()}
	role, err := store.ParseRole(request.Role)
	if err != nil {
		return "", err
	}
	lifetime := time.Duration(request.TtlSeconds * float64(time.Second))
	switch {
	case !(request.TtlSeconds >= 0) || request.TtlSeconds > maxTokenLifetime.Seconds():
		return "", fmt.Errorf("lifetime of %g s: want up to ten years, or none", request.TtlSeconds)
	case record.Kind == store.UserToken && (record.Name == "" || len(record.Name) > maxUserBytes):
		return "", fmt.Errorf("a user's name has 1 to %d bytes", maxUserBytes)
	case record.Kind == store.NodeToken && record.Name != "" && identity.CheckName(record.Name) != nil:
		return "", identity.CheckName(record.Name)
	case record.Kind == store.NodeToken && request.Role != "":
		return "", errors.New("a node has no role: only a user has one")
	case record.Kind == store.NodeToken && lifetime == 0:
		lifetime = nodeTokenLifetime
	case record.Kind != store.NodeToken && record.Kind != store.UserToken:
		return "", fmt.Errorf("a token is for a node or a user, not for %.40q", request.Kind)
	}
	if record.Kind == store.UserToken {
		record.Role = role
	}
	if lifetime > 0 {
		record.Expires = record.Created.Add(lifetime)
	}
	token, err := pinned.NewToken(t.fingerprint)
	if err != nil {
		return "", err
	}
	record.Hash = pinned.Hash(token.Secret())
	t.cluster.Lock()
	defer t.cluster.Unlock()
	if err := t.makeRoom(ctx); err != nil {
		return "", err
	}
	if err := t.records.put(ctx, store.KindToken, record.Hash, record); err != nil {
		return "", err
	}
	t.book.put(record)
	return token.String(), nil
}

// makeRoom removes useless tokens if there are as many tokens as there may be. Error: none is useless.
func (t *tokens) makeRoom(ctx context.Context) error {
	all := t.book.all()
	if len(all) < maxTokens {
		return nil
	}
	useless := slices.DeleteFunc(all, func(one store.Token) bool {
		return tokenState(one, t.now()) == tokenValid
	})
	if len(useless) == 0 {
		return fmt.Errorf("there are %d tokens, which is the limit; remove some with godwit-controller "+
			"token rm", maxTokens)
	}
	return t.drop(ctx, useless)
}

// sweep removes tokens that have been useless for a while.
func (t *tokens) sweep(ctx context.Context) error {
	now := t.now()
	if now.Sub(t.swept) < sweepEvery {
		return nil
	}
	t.swept = now
	return t.drop(ctx, slices.DeleteFunc(t.book.all(), func(one store.Token) bool {
		if one.Kind == store.UserToken {
			return !one.Expired(now.Add(-keepUserTokens))
		}
		return !one.Expired(now.Add(-keepJoinTokens)) && (!one.Used || now.Sub(one.UsedAt) < keepJoinTokens)
	}))
}

// drop removes tokens. Those that could not be removed are useful as before.
func (t *tokens) drop(ctx context.Context, all []store.Token) error {
	for part := range slices.Chunk(all, store.MaxChanges) {
		var changes []store.Change
		for _, one := range part {
			changes = append(changes, store.Remove(store.KindToken, one.Hash))
		}
		if err := t.records.commit(ctx, changes...); err != nil {
			return fmt.Errorf("remove tokens: %w", err)
		}
		for _, one := range part {
			t.book.drop(one)
			t.log.Info("token removed", "token", tokenID(one), "kind", one.Kind, "name", one.Name)
		}
		t.watchers.wake()
	}
	return nil
}

func tokenID(one store.Token) string { return one.Hash[:min(len(one.Hash), tokenIDDigits)] }

// The states of a token.
const (
	tokenValid   = "valid"
	tokenExpired = "expired"
	tokenUsed    = "used"
)

func tokenState(one store.Token, now time.Time) string {
	switch {
	case one.Used:
		return tokenUsed
	case one.Expired(now):
		return tokenExpired
	}
	return tokenValid
}

func (t *tokens) describe(one store.Token) *api.TokenRecord {
	told := &api.TokenRecord{
		Id: tokenID(one), Kind: string(one.Kind), Name: one.Name, State: tokenState(one, t.now()),
		CreatedUnixNanoseconds: one.Created.UnixNano(),
	}
	if one.Kind == store.UserToken {
		told.Role = string(cmp.Or(one.Role, store.Operator))
	}
	if !one.Expires.IsZero() {
		told.ExpiresUnixNanoseconds = one.Expires.UnixNano()
	}
	return told
}

// remove removes the token with an id, or all tokens of a user. Streams that began with them end.
func (t *tokens) remove(ctx context.Context, reference string) ([]store.Token, error) {
	t.cluster.Lock()
	defer t.cluster.Unlock()
	var byID, byName []store.Token
	for _, one := range t.book.all() {
		if tokenID(one) == reference {
			byID = append(byID, one)
		}
		if one.Kind == store.UserToken && one.Name == reference {
			byName = append(byName, one)
		}
	}
	switch {
	case len(byID) > 1 || len(byID) > 0 && len(byName) > 0:
		return nil, status.Errorf(codes.FailedPrecondition, "%.64q is the id of a token, and that of "+
			"another or the name of a user; remove the others by their ids first", reference)
	case len(byID)+len(byName) == 0:
		return nil, status.Errorf(codes.NotFound, "no token has the id %.64q, and no user with a token has "+
			"that name; godwit-controller token ls lists them", reference)
	}
	removed := slices.Concat(byID, byName)
	if err := t.drop(ctx, removed); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return removed, nil
}

// shownBy returns the certificates that a client showed in its handshake.
func shownBy(ctx context.Context) ([]*x509.Certificate, error) {
	shown, found := intake.From(ctx)
	if !found || len(shown.State.PeerCertificates) == 0 {
		return nil, errors.New("the caller showed no certificate of a node")
	}
	return shown.State.PeerCertificates, nil
}

// authorities are those that the controller trusts, by fingerprint.
type authorities map[string]store.Authority

// verify checks a node's certificate against the authorities.
func (a authorities) verify(shown []*x509.Certificate, now time.Time) (identity.Peer, error) {
	roots := x509.NewCertPool()
	for _, one := range a {
		certificate, err := x509.ParseCertificate(one.Certificate)
		if err != nil {
			return identity.Peer{}, fmt.Errorf("read an authority: %w", err)
		}
		roots.AddCert(certificate)
	}
	return verifyBy(shown[0], roots, now)
}

func verifyBy(leaf *x509.Certificate, roots *x509.CertPool, now time.Time) (identity.Peer, error) {
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return identity.Peer{}, fmt.Errorf("the node's certificate is not valid here (the controller's "+
			"clock "+
			"says %s): %w", now.UTC().Format(time.RFC3339), err)
	}
	return identity.PeerOf(leaf)
}

// join admits the node whose certificate the caller shows. Its token is spent. The first node's authority
// becomes the one that the controller trusts, and nodes of other clusters are refused.
func (c *cluster) join(ctx context.Context, secret string) (string, error) {
	shown, err := shownBy(ctx)
	if err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	token, found := c.callers.tokens.find(pinned.Hash(secret))
	switch {
	case !found || token.Kind != store.NodeToken:
		return "", errors.New("the controller does not know this token; make one with godwit-controller " +
			"token node")
	case token.Used:
		return "", errors.New("the token has been used; make another with godwit-controller token node")
	case token.Expired(c.now()):
		return "", errors.New("the token has expired; make another with godwit-controller token node")
	}
	authority, changes, err := authorities(c.state.Authorities).issuer(shown)
	if err != nil {
		return "", err
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	peer, err := verifyBy(shown[0], roots, c.now())
	if err != nil {
		return "", err
	}
	if token.Name != "" && token.Name != peer.Name {
		return "", fmt.Errorf("the token is for the node %s, and this is %s", token.Name, peer.Name)
	}
	token.Used, token.UsedAt = true, c.now().UTC()
	node := c.newNode(peer.Name, peer.Number)
	spent, err := store.Put(store.KindToken, token.Hash, token)
	if err != nil {
		return "", err
	}
	joined, err := store.Put(store.KindNode, node.Name, node)
	if err != nil {
		return "", err
	}
	if err := c.records.commit(ctx, append(changes, spent, joined)...); err != nil {
		return "", err
	}
	c.callers.tokens.put(token)
	c.state.Nodes[node.Name] = node
	c.state.Authorities[fingerprintOf(authority)] = store.Authority{Certificate: authority.Raw}
	return node.Name, nil
}

// issuer finds the authority that issued a node's certificate. changes make it trusted, if it is the
// first.
func (a authorities) issuer(shown []*x509.Certificate) (*x509.Certificate, []store.Change, error) {
	for _, one := range shown[1:] {
		if !one.IsCA || shown[0].CheckSignatureFrom(one) != nil {
			continue
		}
		if known, found := a[fingerprintOf(one)]; found &&
			bytes.Equal(known.Certificate, one.Raw) {
			return one, nil, nil
		}
		if len(a) > 0 {
			return nil, nil, errors.New("this controller is for the nodes of another cluster; give " +
				"these nodes a " +
				"controller of their own")
		}
		change, err := store.Put(store.KindAuthority, fingerprintOf(one),
			store.Authority{Certificate: one.Raw})
		return one, []store.Change{change}, err
	}
	return nil, nil, errors.New("the node did not show the certificate of its authority")
}

func fingerprintOf(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return hex.EncodeToString(sum[:])
}

// adminService serves root on the controller's machine.
type adminService struct {
	api.UnimplementedControllerAdminServer
	cluster *cluster
}

// CreateToken makes a token.
func (s *adminService) CreateToken(ctx context.Context, request *api.CreateTokenRequest) (
	*api.CreateTokenReply, error) {
	token, err := s.cluster.tokens.create(ctx, request)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &api.CreateTokenReply{Token: token}, nil
}

// ListTokens lists all tokens, the oldest first.
func (s *adminService) ListTokens(context.Context, *api.ListTokensRequest) (*api.ListTokensReply, error) {
	reply := &api.ListTokensReply{}
	for _, one := range s.cluster.callers.tokens.all() {
		reply.Tokens = append(reply.Tokens, s.cluster.tokens.describe(one))
	}
	return reply, nil
}

// RemoveToken makes tokens useless.
func (s *adminService) RemoveToken(ctx context.Context, request *api.RemoveTokenRequest) (
	*api.RemoveTokenReply, error) {
	removed, err := s.cluster.tokens.remove(ctx, request.Reference)
	if err != nil {
		return nil, err
	}
	reply := &api.RemoveTokenReply{}
	for _, one := range removed {
		reply.Tokens = append(reply.Tokens, s.cluster.tokens.describe(one))
	}
	return reply, nil
}
