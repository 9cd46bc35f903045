package services

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// prometheus monitors itself.
func prometheus() service {
	return service{
		name: "prometheus", port: 9090, packages: []string{"prometheus"}, user: "prometheus",
		setup: `
			printf 'global: {scrape_interval: 1s}\nscrape_configs: [{job_name: self, static_configs: [{targets: ["localhost:9090"]}]}]\n' >/etc/prometheus/bench.yml
			mkdir -p /var/lib/bench && chown prometheus:prometheus /var/lib/bench`,
		command: []string{"prometheus", "--config.file=/etc/prometheus/bench.yml",
			"--storage.tsdb.path=/var/lib/bench"},
		connect: func(ctx context.Context, to address, _ int) (session, error) {
			conn, err := connectHTTP(ctx, to, "http")
			return &metricsSession{oneConn: conn}, err
		},
	}
}

// metricsSession checks that the number of samples only grows: none may disappear.
type metricsSession struct {
	oneConn
	samples int64
}

func (s *metricsSession) Ask(ctx context.Context, _ int64) error {
	query := url.Values{"query": {`count_over_time(up{job="self"}[1d])`}}.Encode()
	body, err := s.request(ctx, http.MethodGet, "/api/v1/query?"+query, nil)
	if err != nil {
		return err
	}
	var answer struct {
		Status string `json:"status"`
		Data   struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" || len(answer.Data.Result) != 1 {
		return fmt.Errorf("%.200s", body)
	}
	text, _ := answer.Data.Result[0].Value[1].(string)
	samples, err := strconv.ParseInt(text, 10, 64)
	if err == nil && samples < s.samples {
		err = fmt.Errorf("there were %d samples, and are %d", s.samples, samples)
	}
	s.samples = samples
	return err
}
