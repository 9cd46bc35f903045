// A list of everything about the files below some paths, one line each, to be compared before and after a move.
#define _GNU_SOURCE
#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

// Hard links are told by the first name under which a file was met.
static struct met {
	dev_t device;
	ino_t inode;
	char *name;
} *met;
static size_t met_count;

static const char *first_name(const char *path, const struct stat *status)
{
	for (size_t i = 0; i < met_count; i++)
		if (met[i].device == status->st_dev && met[i].inode == status->st_ino)
			return met[i].name;
	met = realloc(met, (met_count + 1) * sizeof *met);
	met[met_count++] = (struct met){ status->st_dev, status->st_ino, strdup(path) };
	return path;
}

static void print_escaped(const char *text, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		unsigned char c = (unsigned char)text[i];
		if (c <= ' ' || c >= 127 || c == '\\')
			printf("\\%02x", c);
		else
			putchar(c);
	}
}

// print_content gives a hash (FNV-1a) of a file's data, found by its data ranges so that holes take no time.
static void print_content(const char *path, const struct stat *status)
{
	uint64_t hash = 0xcbf29ce484222325u;
	int fd = open(path, O_RDONLY | O_NOATIME);
	if (fd < 0) {
		printf(" unreadable:%d", errno);
		return;
	}
	for (off_t at = 0; at < status->st_size && (at = lseek(fd, at, SEEK_DATA)) >= 0;) {
		static uint8_t data[1 << 16];
		ssize_t n = pread(fd, data, sizeof data, at);
		if (n <= 0)
			break;
		for (ssize_t i = 0; i < n; i++)
			if (data[i] != 0) // holes and zeros are alike
				hash = ((hash ^ data[i]) * 0x100000001b3u) ^ (uint64_t)(at + i);
		at += n;
	}
	close(fd);
	printf(" hash=%016llx %s", (unsigned long long)hash,
	       status->st_size > (1 << 20) && status->st_blocks * 512 < status->st_size / 2 ? "sparse" : "dense");
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void print_attributes(const char *path)
{
	static char names[1 << 16], value[1 << 16];
	char *sorted[256];
	int count = 0;
	ssize_t size = llistxattr(path, names, sizeof names);
	for (ssize_t at = 0; at < size && count < 256; at += (ssize_t)strlen(names + at) + 1)
		sorted[count++] = names + at;
	qsort(sorted, (size_t)count, sizeof *sorted, compare);
	for (int i = 0; i < count; i++) {
		ssize_t n = lgetxattr(path, sorted[i], value, sizeof value);
		printf(" %s=", sorted[i]);
		print_escaped(value, n > 0 ? (size_t)n : 0);
	}
}

static void print_entry(const char *path, const struct stat *status)
{
	print_escaped(path, strlen(path));
	printf(" mode=%o owner=%u:%u mtime=%lld.%09ld", status->st_mode, status->st_uid, status->st_gid,
	       (long long)status->st_mtim.tv_sec, status->st_mtim.tv_nsec);
	if (!S_ISDIR(status->st_mode))
		printf(" links=%lu size=%lld", (unsigned long)status->st_nlink, (long long)status->st_size);
	if (!S_ISDIR(status->st_mode) && status->st_nlink > 1) {
		const char *first = first_name(path, status);
		printf(" same-as=");
		print_escaped(first, strlen(first));
	}
	if (S_ISREG(status->st_mode))
		print_content(path, status);
	if (S_ISCHR(status->st_mode) || S_ISBLK(status->st_mode))
		printf(" device=%u:%u", major(status->st_rdev), minor(status->st_rdev));
	if (S_ISLNK(status->st_mode)) {
		char target[PATH_MAX];
		ssize_t n = readlink(path, target, sizeof target);
		printf(" to=");
		print_escaped(target, n > 0 ? (size_t)n : 0);
	}
	print_attributes(path);
	putchar('\n');
}

// walk goes through the files in order of their names, and not into other file systems.
static void walk(const char *path, dev_t device)
{
	struct stat status;
	if (lstat(path, &status) != 0) {
		printf("%s: %s\n", path, strerror(errno));
		return;
	}
	if (S_ISDIR(status.st_mode) && status.st_dev != device)
		return;
	print_entry(path, &status);
	if (!S_ISDIR(status.st_mode))
		return;
	struct dirent **entries;
	int count = scandir(path, &entries, NULL, alphasort);
	for (int i = 0; i < count; i++) {
		char *below;
		if (strcmp(entries[i]->d_name, ".") != 0 && strcmp(entries[i]->d_name, "..") != 0 &&
		    asprintf(&below, "%s/%s", strcmp(path, "/") == 0 ? "" : path, entries[i]->d_name) > 0) {
			walk(below, device);
			free(below);
		}
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
}

int manifest(int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		struct stat status;
		if (stat(argv[i], &status) != 0)
			return 1;
		walk(argv[i], status.st_dev);
	}
	return fflush(stdout) == 0 ? 0 : 1;
}
