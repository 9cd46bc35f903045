// Open files: at an offset, shared, deleted, linked and unlinked; directories; and a tree of files of every sort.
#define _GNU_SOURCE
#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

static int make_file(const char *path, int flags, size_t size, uint64_t seed)
{
	uint8_t data[1 << 16];
	int fd = must(open(path, flags | O_CREAT, 0640));
	fill(data, size, seed, 0);
	must(write(fd, data, size));
	return fd;
}

static bool holds(int fd, size_t size, uint64_t seed)
{
	uint8_t data[1 << 16];
	ssize_t n = pread(fd, data, sizeof data, 0);
	if (n != (ssize_t)size)
		bad("descriptor %d has %zd bytes, not %zu (%m)", fd, n, size);
	return n == (ssize_t)size && filled(data, size, seed, 0);
}

// ---- open files ----

enum { size = 40000, high_number = 900 };

static int at_offset, appending, copy, path_only, directory, in_layer, on_shm, with_flags, write_only, in_volume = -1;
static int beyond_end, of_proc;
static uint8_t *volume_map;
static struct helper sharer;
static off_t directory_at;
static char next_entry[NAME_MAX + 1];

static void check_sharer(void)
{
	want_equal(lseek(at_offset, 0, SEEK_CUR), 12345);
	// The next user of the offset, this process's parent, finds it moved.
	want_equal(lseek(at_offset, 111, SEEK_SET), 111);
}

static void read_half_of_directory(void)
{
	must(mkdir("/tmp/directory", 0755));
	for (int i = 0; i < 40; i++) {
		char name[64];
		snprintf(name, sizeof name, "/tmp/directory/%d", i);
		write_file(name, "");
	}
	directory = must(open("/tmp/directory", O_RDONLY | O_DIRECTORY));
	DIR *d = fdopendir(must(dup(directory)));
	for (int i = 0; i < 20; i++)
		if (readdir(d) == NULL)
			die("readdir");
	directory_at = telldir(d);
	must(lseek(directory, directory_at, SEEK_SET));
	struct dirent *e = readdir(d);
	snprintf(next_entry, sizeof next_entry, "%s", e != NULL ? e->d_name : "");
	must(lseek(directory, directory_at, SEEK_SET));
}

static void set_up_open(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	at_offset = make_file("/tmp/at-offset", O_RDWR, size, 1);
	must(lseek(at_offset, 12345, SEEK_SET));
	copy = must(dup3(at_offset, high_number, O_CLOEXEC));
	appending = make_file("/tmp/appending", O_RDWR | O_APPEND | O_NONBLOCK, size, 2);
	path_only = must(open("/tmp/at-offset", O_PATH));
	in_layer = must(open("/etc/layer-file", O_RDONLY));
	must(lseek(in_layer, 5, SEEK_SET));
	on_shm = make_file("/dev/shm/file", O_RDWR, size, 3);
	with_flags = make_file("/tmp/flags", O_RDWR | O_NOATIME | O_SYNC, size, 4);
	must(fcntl(with_flags, F_SETOWN, getpid()));
	must(fcntl(with_flags, F_SETSIG, SIGRTMIN));
	write_only = make_file("/tmp/write-only", O_WRONLY, size, 5);
	beyond_end = make_file("/tmp/beyond", O_RDWR, 100, 6);
	must(lseek(beyond_end, 1L << 33, SEEK_SET));
	of_proc = must(open("/proc/self/status", O_RDONLY));
	if (access("/data", F_OK) == 0) {
		in_volume = make_file("/data/file", O_RDWR, size, 7);
		must(lseek(in_volume, 77, SEEK_SET));
		int fd = make_file("/data/mapped", O_RDWR, size, 8);
		volume_map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (volume_map == MAP_FAILED)
			die("mmap");
		must(close(fd));
		memset(volume_map, 1, size);
	}
	read_half_of_directory();
	sharer = helper_start(NULL, check_sharer);
	must(lseek(at_offset, 12345, SEEK_SET));
}

// check_map writes by way of a mapping of a file and leaves it to the kernel when that gets to the file.
static void check_map(void)
{
	uint8_t data[size], mapped = volume_map[0];
	int fd = must(open("/data/mapped", O_RDONLY));
	want_equal(must(read(fd, data, size)), size);
	must(close(fd));
	want_equal(memcmp(data, volume_map, size), 0);
	for (int i = 0; i < size; i++)
		if (data[i] != mapped) {
			bad("byte %d of the mapped file is %d, not %d", i, data[i], mapped);
			return;
		}
	memset(volume_map, mapped + 1, size);
}

static void check_flags(int fd, int expected)
{
	want_equal(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_NOATIME | O_SYNC | O_PATH), expected);
}

static void check_open(void)
{
	want(holds(at_offset, size, 1));
	want_equal(lseek(at_offset, 0, SEEK_CUR), 12345);
	want_equal(lseek(copy, 0, SEEK_CUR), 12345);
	want_equal(fcntl(copy, F_GETFD), FD_CLOEXEC);
	want_equal(fcntl(at_offset, F_GETFD), 0);
	helper_ask(&sharer);
	want_equal(lseek(copy, 0, SEEK_CUR), 111);
	want_equal(lseek(copy, 12345, SEEK_SET), 12345);
	check_flags(at_offset, O_RDWR);
	check_flags(appending, O_RDWR | O_APPEND | O_NONBLOCK);
	check_flags(with_flags, O_RDWR | O_NOATIME | O_SYNC);
	check_flags(write_only, O_WRONLY);
	check_flags(path_only, O_PATH);
	want_equal(fcntl(with_flags, F_GETOWN), getpid());
	want_equal(fcntl(with_flags, F_GETSIG), SIGRTMIN);
	struct stat status;
	want_equal(lseek(appending, 0, SEEK_SET), 0);
	want_equal(write(appending, "!", 1), 1);
	want_equal(fstat(appending, &status), 0);
	want_equal(status.st_size, size + 1);
	want_equal(ftruncate(appending, size), 0);
	char text[6] = "";
	want_equal(read(in_layer, text, 5), 5);
	want(strcmp(text, "-file") == 0);
	want_equal(lseek(in_layer, 5, SEEK_SET), 5);
	want(holds(on_shm, size, 3));
	want_equal(lseek(on_shm, 0, SEEK_CUR), size);
	want_equal(lseek(beyond_end, 0, SEEK_CUR), 1L << 33);
	if (in_volume >= 0) {
		want(holds(in_volume, size, 7));
		want_equal(lseek(in_volume, 0, SEEK_CUR), 77);
		check_map();
	}
	want_equal(pread(of_proc, text, 5, 0), 5);
	want(strcmp(text, "Name:") == 0);
	DIR *d = fdopendir(dup(directory));
	struct dirent *e = readdir(d);
	if (e == NULL || strcmp(e->d_name, next_entry) != 0)
		bad("the next entry of the directory is %s, not %s", e != NULL ? e->d_name : "none", next_entry);
	closedir(d);
	want_equal(lseek(directory, directory_at, SEEK_SET), directory_at);
}

const struct state open_files = { "files-open", set_up_open, check_open, NULL };

// ---- deleted files ----

static int gone, gone_sparse, linked, linked_twice, again[2], nameless, gone_shm, replaced, gone_directory, gone_fifo;
static struct helper in_gone_directory;

static const off_t hole = 3L << 30; // more than a deleted file may have in blocks

static void enter_gone_directory(void)
{
	must(mkdir("/tmp/gone-directory", 0700));
	must(chdir("/tmp/gone-directory"));
	must(rmdir("/tmp/gone-directory"));
}

static void check_gone_directory(void)
{
	char path[PATH_MAX] = "";
	errno = 0;
	want(getcwd(path, sizeof path) == NULL);
	want_equal(errno, ENOENT);
	struct stat status;
	want_equal(stat(".", &status), 0);
	want_equal(status.st_nlink, 0);
}

static void set_up_deleted(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	gone = make_file("/tmp/gone", O_RDWR, size, 11);
	must(fchmod(gone, 0604));
	must(lseek(gone, 999, SEEK_SET));
	must(unlink("/tmp/gone"));
	again[0] = make_file("/tmp/again", O_RDWR, size, 12);
	again[1] = must(open("/tmp/again", O_RDONLY));
	must(unlink("/tmp/again"));
	gone_sparse = must(open("/tmp/sparse", O_RDWR | O_CREAT, 0600));
	must(pwrite(gone_sparse, "end", 3, hole));
	must(unlink("/tmp/sparse"));
	linked = make_file("/tmp/linked", O_RDWR, size, 13);
	must(link("/tmp/linked", "/tmp/kept"));
	must(unlink("/tmp/linked"));
	linked_twice = make_file("/tmp/twice", O_RDWR, size, 14);
	must(link("/tmp/twice", "/tmp/kept-1"));
	must(link("/tmp/twice", "/tmp/kept-2"));
	must(unlink("/tmp/twice"));
	nameless = must(open("/tmp", O_RDWR | O_TMPFILE, 0600));
	uint8_t data[size];
	fill(data, size, 15, 0);
	must(write(nameless, data, size));
	gone_shm = make_file("/dev/shm/gone", O_RDWR, size, 16);
	must(unlink("/dev/shm/gone"));
	replaced = make_file("/tmp/replaced", O_RDWR, size, 17);
	must(unlink("/tmp/replaced"));
	must(close(make_file("/tmp/replaced", O_RDWR, size, 18)));
	must(mkdir("/tmp/another-gone", 0700));
	gone_directory = must(open("/tmp/another-gone", O_RDONLY | O_DIRECTORY));
	must(rmdir("/tmp/another-gone"));
	must(mkfifo("/tmp/gone-fifo", 0600));
	gone_fifo = must(open("/tmp/gone-fifo", O_RDWR | O_NONBLOCK));
	must(write(gone_fifo, "fifo", 4));
	must(unlink("/tmp/gone-fifo"));
	in_gone_directory = helper_start(enter_gone_directory, check_gone_directory);
}

static void want_links(int fd, nlink_t links)
{
	struct stat status = { .st_nlink = 99 };
	want_equal(fstat(fd, &status), 0);
	if (status.st_nlink != links)
		bad("descriptor %d has %lu links, not %lu", fd, (unsigned long)status.st_nlink, (unsigned long)links);
}

static void want_same(int fd, const char *path)
{
	struct stat a = { .st_ino = 0 }, b = { .st_ino = 1 };
	want_equal(fstat(fd, &a), 0);
	want_equal(stat(path, &b), 0);
	if (a.st_ino != b.st_ino)
		bad("descriptor %d is not the file %s", fd, path);
}

static void list_leftovers(const char *path)
{
	DIR *d = opendir(path);
	for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
		if (strncmp(e->d_name, "link_remap", 10) == 0 || strncmp(e->d_name, ".criu", 5) == 0 ||
		    strstr(e->d_name, "cr.") != NULL)
			bad("left over: %s/%s", path, e->d_name);
	if (d != NULL)
		closedir(d);
}

static void check_deleted(void)
{
	struct stat status;
	want(holds(gone, size, 11));
	want_equal(lseek(gone, 0, SEEK_CUR), 999);
	want_links(gone, 0);
	want_equal(fstat(gone, &status), 0);
	want_equal(status.st_mode & 07777, 0604);
	want(access("/tmp/gone", F_OK) != 0);
	// Two descriptors of one deleted file are still of one file.
	want(holds(again[1], size, 12));
	uint8_t byte = (uint8_t)~pattern(12, 5);
	want_equal(pwrite(again[0], &byte, 1, 5), 1);
	want(!holds(again[1], size, 12));
	byte = pattern(12, 5);
	want_equal(pwrite(again[0], &byte, 1, 5), 1);
	want_links(again[1], 0);
	char text[4] = "";
	want_equal(pread(gone_sparse, text, 3, hole), 3);
	want(strcmp(text, "end") == 0);
	want_equal(fstat(gone_sparse, &status), 0);
	want(status.st_blocks * 512 < hole / 2);
	want(holds(linked, size, 13));
	want_links(linked, 1);
	want_same(linked, "/tmp/kept");
	want(access("/tmp/linked", F_OK) != 0);
	want(holds(linked_twice, size, 14));
	want_links(linked_twice, 2);
	want_same(linked_twice, "/tmp/kept-1");
	want_same(linked_twice, "/tmp/kept-2");
	want(holds(nameless, size, 15));
	want_links(nameless, 0);
	want(holds(gone_shm, size, 16));
	want_links(gone_shm, 0);
	want(holds(replaced, size, 17));
	want_links(replaced, 0);
	int now = open("/tmp/replaced", O_RDONLY);
	want(holds(now, size, 18));
	close(now);
	want_links(gone_directory, 0);
	want_equal(read(gone_fifo, text, 4), 4);
	want_equal(write(gone_fifo, "fifo", 4), 4);
	helper_ask(&in_gone_directory);
	list_leftovers("/tmp");
	list_leftovers("/dev/shm");
	list_leftovers("/");
}

const struct state deleted_files = { "files-deleted", set_up_deleted, check_deleted, NULL };

// ---- a tree of files ----
//
// It is made below the directory that is named, and looked at by "state manifest", from outside.

static void name_at(char *to, const char *base, const char *name)
{
	snprintf(to, PATH_MAX, "%s/%s", base, name);
}

static void make_times(const char *path, long s, long ns)
{
	struct timespec times[2] = { { s + 1, ns / 2 }, { s, ns } };
	must(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW));
}

static void make_plain(const char *base)
{
	char path[PATH_MAX], other[PATH_MAX];
	static const struct {
		const char *name;
		mode_t mode;
		size_t size;
	} plain[] = {
		{ "empty", 0600, 0 },	     { "one", 0644, 1 },	 { "set-user-id", 04755, 5000 }, { "set-group-id", 02711, 4096 },
		{ "sticky", 01666, 65536 }, { "new\nline \xff\t", 0, 1 }, { "-dash", 0777, 10 },
	};
	for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
		name_at(path, base, plain[i].name);
		must(close(make_file(path, O_WRONLY, plain[i].size, i)));
		must(chown(path, (uid_t)(1000 + i), (gid_t)(2000 + i)));
		must(chmod(path, plain[i].mode));
	}
	name_at(path, base, "one");
	for (int i = 0; i < 3; i++) {
		char name[32];
		snprintf(name, sizeof name, "one-link-%d", i);
		name_at(other, base, name);
		must(link(path, other));
	}
	char name[NAME_MAX + 1];
	memset(name, 'n', NAME_MAX);
	name[NAME_MAX] = 0;
	name_at(path, base, name);
	must(close(make_file(path, O_WRONLY, 10, 50)));
}

static void make_special(const char *base)
{
	char path[PATH_MAX];
	name_at(path, base, "fifo");
	must(mkfifo(path, 0640));
	name_at(path, base, "character-device");
	must(mknod(path, S_IFCHR | 0620, makedev(1, 3)));
	name_at(path, base, "block-device");
	must(mknod(path, S_IFBLK | 0604, makedev(7, 200)));
	name_at(path, base, "socket");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	snprintf(address.sun_path, sizeof address.sun_path, "%.100s", path);
	int fd = must(socket(AF_UNIX, SOCK_DGRAM, 0));
	must(bind(fd, (struct sockaddr *)&address, sizeof address));
	must(close(fd));
	name_at(path, base, "symbolic-link");
	must(symlink("../target that is \xfe nowhere", path));
	must(lchown(path, 12, 13));
	make_times(path, 1000000000, 123456789);
	name_at(path, base, "before-1970");
	write_file(path, "old");
	make_times(path, -12345, 999999999);
	name_at(path, base, "after-2038");
	write_file(path, "new");
	make_times(path, 5000000000, 1);
}

static void make_sparse(const char *base)
{
	char path[PATH_MAX];
	name_at(path, base, "sparse");
	int fd = must(open(path, O_WRONLY | O_CREAT, 0600));
	must(pwrite(fd, "start", 5, 0));
	must(pwrite(fd, "middle", 6, 8 << 20));
	must(ftruncate(fd, 1L << 30));
	must(close(fd));
	name_at(path, base, "hole-only");
	fd = must(open(path, O_WRONLY | O_CREAT, 0600));
	must(ftruncate(fd, 12345678));
	must(close(fd));
}

// An access control list: user rwx, user 1234 r-x, group r--, mask rwx, other ---  (linux/posix_acl_xattr.h).
static const uint8_t list[] = {
	2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 5, 0, 210, 4, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
	16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
};
// cap_net_raw=ep (linux/capability.h, VFS_CAP_REVISION_2 with the effective bit).
static const uint8_t capability[] = { 1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };

static void make_attributes(const char *base)
{
	char path[PATH_MAX];
	name_at(path, base, "with-attributes");
	write_file(path, "x");
	must(setxattr(path, "user.plain", "value", 5, 0));
	must(setxattr(path, "user.empty", "", 0, 0));
	must(setxattr(path, "user.binary", "\0\1\2\xff", 4, 0));
	must(setxattr(path, "security.capability", capability, sizeof capability, 0));
	name_at(path, base, "with-list");
	write_file(path, "x");
	must(setxattr(path, "system.posix_acl_access", list, sizeof list, 0));
	name_at(path, base, "directory-with-list");
	must(mkdir(path, 0750));
	must(setxattr(path, "system.posix_acl_default", list, sizeof list, 0));
	must(setxattr(path, "user.directory", "yes", 3, 0));
}

static void make_directories(const char *base)
{
	char path[PATH_MAX], deep[PATH_MAX];
	name_at(path, base, "sticky-directory");
	must(mkdir(path, 0700));
	must(chmod(path, 03777));
	must(chown(path, 77, 78));
	name_at(deep, base, "deep");
	for (int i = 0; i < 40; i++) {
		must(mkdir(deep, 0755));
		name_at(path, deep, "d");
		strcpy(deep, path);
	}
	must(close(make_file(deep, O_WRONLY, 100, 60)));
	name_at(path, base, "many");
	must(mkdir(path, 0755));
	for (int i = 0; i < 300; i++) {
		char name[16];
		snprintf(name, sizeof name, "%d", i);
		name_at(deep, path, name);
		must(close(make_file(deep, O_WRONLY, (size_t)i * 7, (uint64_t)i)));
	}
	make_times(path, 1234567890, 987654321);
}

// change_image changes what came with the image, so that the writable layer has whiteouts and opaque directories.
static void change_image(void)
{
	must(unlink("/etc/deleted-from-layer"));
	must(unlink("/usr/share/layered/replaced/old"));
	must(rmdir("/usr/share/layered/replaced"));
	must(mkdir("/usr/share/layered/replaced", 0711));
	write_file("/usr/share/layered/replaced/new", "new");
	must(rename("/usr/share/layered/moved", "/usr/share/layered/moved-here"));
	int fd = must(open("/usr/share/layered/appended", O_WRONLY | O_APPEND));
	must(write(fd, "more", 4));
	must(close(fd));
	must(chmod("/usr/share/layered/mode", 0601));
	must(link("/usr/share/layered/mode", "/usr/share/layered/mode-link"));
	must(unlink("/usr/share/layered/becomes-directory"));
	must(mkdir("/usr/share/layered/becomes-directory", 0755));
	must(unlink("/usr/share/layered/gone-directory/file"));
	must(rmdir("/usr/share/layered/gone-directory"));
}

static void set_up_files(int argc, char **argv)
{
	umask(0);
	for (int i = 0; i < argc; i++) {
		mkdir(argv[i], 0755);
		make_plain(argv[i]);
		make_special(argv[i]);
		make_sparse(argv[i]);
		make_attributes(argv[i]);
		make_directories(argv[i]);
	}
	change_image();
}

static void check_files(void)
{
	want(access("/etc/deleted-from-layer", F_OK) != 0);
	want(access("/usr/share/layered/replaced/old", F_OK) != 0);
	want(access("/usr/share/layered/gone-directory", F_OK) != 0);
	want(access("/usr/share/layered/moved-here", F_OK) == 0);
}

const struct state files = { "files", set_up_files, check_files, NULL };
