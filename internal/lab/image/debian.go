package image

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// debian is a system container, for LXC: systemd, and NGINX as its service.
//
// Everything in it belongs to root: CRIU cannot read the limits of other users' processes on a machine
// without CAP_SYS_RESOURCE. Units that would only cause trouble in a container are masked, as in LXC's
// template for Debian. Filters of addresses are programs of the kernel, which CRIU does not save.
func debian() recipe {
	links := map[string]string{
		"etc/systemd/system/default.target":                        "/lib/systemd/system/multi-user.target",
		"etc/systemd/system/multi-user.target.wants/nginx.service": "/lib/systemd/system/nginx.service",
	}
	for _, unit := range []string{
		"systemd-udevd.service", "systemd-udevd-control.socket", "systemd-udevd-kernel.socket",
		"systemd-logind.service",
		"systemd-networkd.service", "systemd-firstboot.service", "getty.target",
	} {
		links["etc/systemd/system/"+unit] = "/dev/null"
	}
	return recipe{
		Layers: []layerRecipe{tools(), libraries(), {
			Name: "debian", Packages: []string{"systemd-sysv", "nginx"}, Init: true, Links: links,
			Dirs: map[string]int64{
				"etc/systemd": 0o755, "etc/systemd/system": 0o755,
				"etc/systemd/system/multi-user.target.wants": 0o755,
				"etc/systemd/system/service.d":               0o755, "var/lib/nginx": 0o755,
				"var/log/nginx": 0o755, "var/log/journal": 0o755,
			},
			Files: map[string]string{
				"etc/machine-id": "9d3c1f0a5b7e4c62a8f1d0e3b4c5a697\n",
				"etc/fstab":      "",
				"etc/nginx/nginx.conf": strings.NewReplacer("user www-data;", "user root;", "http {",
					"http {\n\tkeepalive_requests 1000000000;").Replace(nginxConfig),
				"etc/systemd/system/service.d/10-addresses.conf": "[Service]\n" +
					"IPAddressDeny=\nIPAddressAllow=\n",
			},
		}},
		Config: config{Env: []string{searchPath}, Cmd: []string{"/sbin/init"}, StopSignal: "SIGRTMIN+3",
			ExposedPorts: ports("80/tcp")},
	}
}

// Unpack unpacks the named image's file system into an existing directory.
func Unpack(ctx context.Context, name, cacheDir, directory string) error {
	recipe, err := find(name)
	if err != nil {
		return err
	}
	if _, err := Build(ctx, name, cacheDir); err != nil {
		return err
	}
	for i := range recipe.Layers {
		made, err := readLayer(layerBase(cacheDir, recipe.Layers[:i+1]))
		if err == nil {
			err = unpackTar(ctx, made.path, directory)
		}
		if err != nil {
			return fmt.Errorf("lab image %s: %w", name, err)
		}
	}
	return os.Chmod(directory, 0o755)
}
