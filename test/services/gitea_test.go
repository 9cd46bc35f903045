package services

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// gitea has repositories in files, which git changes, and all other data in a MariaDB beside it.
func gitea() service {
	const module = "code.gitea.io/gitea@v1.26.0"
	return service{
		name: "gitea", port: 80, packages: []string{"git", "mariadb-server"}, every: 500 * time.Millisecond,
		programs: map[string]program{
			"/usr/local/bin/gitea":               goModule{module, "."},
			"/usr/share/gitea/templates":         moduleFiles{module, "templates"},
			"/usr/share/gitea/options":           moduleFiles{module, "options"},
			"/usr/share/gitea/public":            moduleFiles{module, "public"},
			"/var/lib/gitea/custom/conf/app.ini": source("gitea.ini"),
			"/srv/gitea.sh":                      source("gitea.sh"),
		},
		setup: "install --directory --owner=mysql /run/mysqld",
		flags: []string{"--env", "GITEA_WORK_DIR=/var/lib/gitea", "--env",
			"GITEA_I_AM_BEING_UNSAFE_RUNNING_AS_ROOT=true", "--env", "HOME=/root"},
		command: []string{"sh", "/srv/gitea.sh"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			return connectGitea(ctx, to, number)
		},
		lost: func(ctx context.Context, to address, number int, asked int64) (int64, error) {
			s, err := connectGitea(ctx, to, number)
			if err != nil {
				return 0, err
			}
			defer s.Close()
			body, err := s.call(ctx, http.MethodGet, s.repository()+"/contents", nil)
			if err != nil {
				return 0, err
			}
			var files []struct{ Name string }
			err = json.Unmarshal(body, &files)
			return max(0, asked-int64(len(files))), err
		},
	}
}

type giteaSession struct {
	oneConn
	number int
}

func (s giteaSession) repository() string { return fmt.Sprintf("/api/v1/repos/owner/of-%d", s.number) }

func connectGitea(ctx context.Context, to address, number int) (s giteaSession, err error) {
	if s.oneConn, err = connectHTTP(ctx, to, "http"); err != nil {
		return s, err
	}
	s.number = number
	s.header = http.Header{
		"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte("owner:secret-word"))},
		"Content-Type":  {"application/json"},
	}
	_, err = s.call(ctx, http.MethodPost, "/api/v1/user/repos",
		map[string]any{"name": fmt.Sprintf("of-%d", number), "private": true})
	if err != nil && strings.HasPrefix(err.Error(), "409") { // it existed
		err = nil
	}
	return s, err
}

func (s giteaSession) call(ctx context.Context, method, path string, question any) ([]byte, error) {
	content, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	return s.request(ctx, method, path, content)
}

// Ask commits a file and reads it again.
func (s giteaSession) Ask(ctx context.Context, nth int64) error {
	path := fmt.Sprintf("%s/contents/%d", s.repository(), nth)
	text := base64.StdEncoding.EncodeToString([]byte(row(s.number, nth)))
	_, err := s.call(ctx, http.MethodPost, path, map[string]any{"content": text, "message": "one more"})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		return err
	}
	body, err := s.call(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	var file struct{ Content string }
	if err := json.Unmarshal(body, &file); err != nil {
		return err
	}
	return is(nil, file.Content, text)
}
