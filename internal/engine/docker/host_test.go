package docker

import (
	"reflect"
	"slices"
	"testing"

	"github.com/moby/moby/api/types/container"
)

// decided are the fields that hostConfig leaves out: refused by obstacles, set by this engine, or of
// another system.
var decided = []string{
	"ContainerIDFile", "RestartPolicy", "Runtime", // set by this engine
	"VolumesFrom", "Annotations", "Cgroup", "Links", "PidMode", "Privileged", "StorageOpt", "UTSMode",
	"UsernsMode", "Sysctls", "CgroupParent",
	"CPURealtimePeriod", "CPURealtimeRuntime", "Devices", "DeviceCgroupRules", "DeviceRequests", // refused
	"Isolation", "CPUCount", "CPUPercent", "IOMaximumIOps", "IOMaximumBandwidth", // for Windows
	"Binds", "Mounts", "Resources", // handled elsewhere
}

// TestHostConfig checks that every field was considered, and that accepted fields are copied unchanged.
func TestHostConfig(t *testing.T) {
	var from container.HostConfig
	fill(reflect.ValueOf(&from).Elem())
	fill(reflect.ValueOf(&from.Resources).Elem())
	made := hostConfig(&from, nil, nil)
	compare(t, reflect.ValueOf(from), reflect.ValueOf(*made))
	compare(t, reflect.ValueOf(from.Resources), reflect.ValueOf(made.Resources))
	if made.Runtime != Runtime || made.RestartPolicy != (container.RestartPolicy{}) {
		t.Errorf("%+v", made)
	}
}

func compare(t *testing.T, from, made reflect.Value) {
	t.Helper()
	for i := range from.NumField() {
		name := from.Type().Field(i).Name
		if !slices.Contains(decided, name) &&
			!reflect.DeepEqual(from.Field(i).Interface(), made.Field(i).Interface()) {
			t.Errorf("%s is left out", name)
		}
	}
}

// fill sets each field to a nonzero value where that is simple.
func fill(s reflect.Value) {
	for i := range s.NumField() {
		switch f := s.Field(i); f.Kind() { //nolint:exhaustive // The others are in other structs.
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int, reflect.Int64:
			f.SetInt(7)
		case reflect.Uint16, reflect.Uint64:
			f.SetUint(7)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Map:
			f.Set(reflect.MakeMap(f.Type()))
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		}
	}
}
