package criu

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/criu/vet"
)

// specification is the name of the container's specification in its bundle. runc and its child processes
// work in the bundle's directory.
const specification = "config.json"

// agreedHere returns what the container that runc restores may have, according to the specification that
// this node's engine has made.
func agreedHere() (vet.Agreed, error) {
	data, err := os.ReadFile(specification)
	if err != nil {
		return vet.Agreed{},
			fmt.Errorf("read the specification of the container, with which its images must agree: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return vet.Agreed{},
			fmt.Errorf("read the specification of the container, with which its images must agree: %w", err)
	}
	return vet.FromSpec(&spec), nil
}

// vet reads the images before CRIU does. If the processes have the engine's default profile of another
// version, CRIU restores them under this node's.
func (p *proxyProcess) vet(o *rpc.CriuOpts) error {
	agreed := p.agreed
	for _, m := range o.GetExtMnt() {
		agreed.Outside = append(agreed.Outside, m.GetKey())
	}
	profile, err := vet.Images(fmt.Sprintf("/proc/self/fd/%d", o.GetImagesDirFd()), agreed)
	if profile != "" {
		o.LsmProfile = proto.String("apparmor:" + profile) // as criu --lsm-profile
	}
	return err
}
