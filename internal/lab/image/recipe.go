package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
)

// recipe describes an image.
type recipe struct {
	Layers []layerRecipe
	Config config
	heavy  bool // it takes hundreds of megabytes, or minutes
}

// layerRecipe describes a layer, on top of the layers before it.
type layerRecipe struct {
	Name     string
	Packages []string
	Applets  bool // links from the names of BusyBox's programs to it
	Links    map[string]string
	Dirs     map[string]int64 // with their modes
	Files    map[string]string

	Init bool `json:",omitempty"` // keep the packages' files for an init system

	Downloads map[string]download `json:",omitempty"` // files from elsewhere, by their paths
	Made      []making            `json:",omitempty"` // files that programs make
	Bulk      int64               `json:",omitempty"` // bytes of incompressible files
}

// config is the part of an image's configuration that says how to run it (OCI image specification).
type config struct {
	Env          []string            `json:"Env,omitempty"`
	Cmd          []string            `json:"Cmd,omitempty"`
	WorkingDir   string              `json:"WorkingDir,omitempty"`
	StopSignal   string              `json:"StopSignal,omitempty"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts,omitempty"`
}

// generation is incremented when the processing of recipes changes, so that old results are not used.
const generation = 1

// Names lists the images that Build can make.
func Names() []string { return slices.Sorted(maps.Keys(recipes())) }

func find(name string) (recipe, error) {
	found, ok := recipes()[name]
	if !ok {
		return recipe{}, fmt.Errorf("there is no lab image %q; there are %s", name,
			strings.Join(Names(), ", "))
	}
	return found, nil
}

func recipes() map[string]recipe {
	all := small()
	maps.Copy(all, studies())
	all["debian"] = debian()
	return all
}

// searchPath is where all images have their programs.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// small are images of a few megabytes.
func small() map[string]recipe {
	env := []string{searchPath}
	return map[string]recipe{
		"busybox": {
			Layers: []layerRecipe{tools()},
			Config: config{Env: env, Cmd: []string{"sh"}},
		},
		"redis": {
			Layers: []layerRecipe{tools(), libraries(), {
				Name: "redis", Packages: []string{"redis-server"}, Dirs: map[string]int64{"data": 0o755},
			}},
			Config: config{
				Env: env, WorkingDir: "/data", ExposedPorts: map[string]struct{}{"6379/tcp": {}},
				Cmd: []string{"redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "",
					"--appendonly", "no"},
			},
		},
		"sqlite": {
			Layers: []layerRecipe{tools(), libraries(),
				{Name: "sqlite", Packages: []string{"sqlite3"}, Dirs: map[string]int64{"data": 0o755}}},
			// it runs no server: its user runs programs in it
			Config: config{Env: env, WorkingDir: "/data", Cmd: []string{"sleep", "1000000"}},
		},
		"nginx": {Layers: []layerRecipe{tools(), libraries(), nginxLayer()}, Config: nginxRun()},
	}
}

// tools is the lowest layer of every image: enough for a shell and for looking around.
func tools() layerRecipe {
	return layerRecipe{
		Name: "tools", Packages: []string{"busybox-static"}, Applets: true,
		// Debian's merged /usr; files of packages with old paths are unpacked to the new ones.
		Links: map[string]string{"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib",
			"lib64": "usr/lib64"},
		Dirs: map[string]int64{
			"dev": 0o755, "etc": 0o755, "home": 0o755, "mnt": 0o755, "proc": 0o755, "root": 0o700,
			"run": 0o755, "sys": 0o755,
			"tmp": 0o1777, "usr": 0o755, "usr/bin": 0o755, "usr/lib": 0o755, "usr/lib64": 0o755,
			"usr/sbin": 0o755,
			"var":      0o755, "var/log": 0o755, "var/tmp": 0o1777,
		},
		Files: map[string]string{
			"etc/passwd": "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/false\n" +
				"www-data:x:33:33:www-data:/var/www:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n",
			"etc/group":         "root:x:0:\ndaemon:x:1:\ntty:x:5:\nwww-data:x:33:\nnogroup:x:65534:\n",
			"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
			"etc/hosts":         "127.0.0.1 localhost\n",
			"etc/hostname":      "",
			"etc/resolv.conf":   "",
		},
	}
}

// libraries are needed by most programs of Debian.
func libraries() layerRecipe {
	return layerRecipe{Name: "libraries", Packages: []string{"libc6", "libcrypt1", "libssl3", "zlib1g"}}
}

func nginxLayer() layerRecipe {
	return layerRecipe{
		Name: "nginx", Packages: []string{"nginx"},
		Dirs:  map[string]int64{"var/lib/nginx": 0o755, "var/log/nginx": 0o755},
		Files: map[string]string{"etc/nginx/nginx.conf": nginxConfig},
	}
}

func nginxRun() config {
	return config{
		Env: []string{searchPath}, StopSignal: "SIGQUIT", ExposedPorts: ports("80/tcp"),
		Cmd: []string{"nginx", "-g", "daemon off;"},
	}
}

const nginxConfig = `user www-data;
worker_processes 2;
error_log stderr;
pid /run/nginx.pid;
events { worker_connections 256; }
http {
	include mime.types;
	access_log off;
	server {
		listen 80 default_server;
		root /usr/share/nginx/html;
	}
}
`

// key names the result of making these layers, one on top of the other, on this architecture.
func key(layers []layerRecipe, rest any) string {
	raw, err := json.Marshal([]any{generation, runtime.GOARCH, layers, rest})
	if err != nil {
		panic(fmt.Sprintf("recipes are plain data: %v", err))
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:6])
}
