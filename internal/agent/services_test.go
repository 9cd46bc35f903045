package agent

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
)

// TestEveryCallIsAnswered: a call that no service answers would fail only when somebody makes it.
func TestEveryCallIsAnswered(t *testing.T) {
	for _, one := range []struct {
		described grpc.ServiceDesc
		service   reflect.Type
	}{
		{api.Agent_ServiceDesc, reflect.TypeFor[localService]()},
		{api.Peer_ServiceDesc, reflect.TypeFor[peerService]()},
	} {
		var names []string
		for _, method := range one.described.Methods {
			names = append(names, method.MethodName)
		}
		for _, stream := range one.described.Streams {
			names = append(names, stream.StreamName)
		}
		for _, name := range names {
			if !answers(one.service, name) {
				t.Errorf("no service answers %s", name)
			}
		}
	}
}

// answers reports whether an embedded service has a method.
func answers(service reflect.Type, name string) bool {
	for i := range service.NumField() {
		field := service.Field(i)
		if strings.HasPrefix(field.Name, "unanswered") {
			continue
		}
		if _, has := field.Type.MethodByName(name); has {
			return true
		}
	}
	return false
}
