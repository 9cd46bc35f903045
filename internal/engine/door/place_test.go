package door

import "testing"

// TestCgroupName: names of cgroups as Docker, Podman and containerd tell them to a runtime, with either driver.
func TestCgroupName(t *testing.T) {
	for path, want := range map[string]string{
		"/docker/5f3a":                   "/docker/5f3a",
		"/libpod_parent/libpod-5f3a":     "/libpod_parent/libpod-5f3a",
		"default/web":                    "/default/web",
		"system.slice:docker:5f3a":       "/system.slice/docker-5f3a.scope",
		"machine.slice:libpod:5f3a":      "/machine.slice/libpod-5f3a.scope",
		":docker:5f3a":                   "/system.slice/docker-5f3a.scope",
		"-.slice:docker:5f3a":            "/docker-5f3a.scope",
		"tenant-red-blue.slice:docker:x": "/tenant.slice/tenant-red.slice/tenant-red-blue.slice/docker-x.scope",
		"a.slice::x":                     "/a.slice/x.scope",
		"/strange:name":                  "/strange:name",
	} {
		if got := cgroupName(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}
