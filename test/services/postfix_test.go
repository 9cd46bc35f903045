package services

import (
	"context"
	"errors"
	"fmt"
	"net/smtp"
	"time"
)

// postfix delivers to a mailbox. It clears its environment except for configured variables, so it is told
// to keep those that asUsers sets.
func postfix() service {
	return service{
		name: "postfix", port: 25, packages: []string{"postfix"}, every: 200 * time.Millisecond,
		setup: `
			postconf -e mydestination=localhost myhostname=service.localdomain inet_protocols=ipv4 inet_interfaces=all \
				maillog_file=/dev/stdout mynetworks=0.0.0.0/0 smtpd_client_connection_rate_limit=0 home_mailbox=Maildir/ \
				smtpd_timeout=1h smtpd_error_sleep_time=0 alias_maps= alias_database= \
				"import_environment=$(postconf -h import_environment) LD_PRELOAD UID_WRAPPER UID_WRAPPER_ROOT"
			useradd --create-home user`,
		command: []string{"postfix", "start-fg"},
		connect: func(ctx context.Context, to address, number int) (session, error) {
			return connectSMTP(ctx, to, number)
		},
		lost: lostMail,
	}
}

// lostMail counts accepted mails that are neither in the mailbox nor in a queue. It waits for mails in a
// queue. A mail that moves from one queue to the next may escape one look, so the queues count as empty
// after several looks.
func lostMail(ctx context.Context, to address, number int, asked int64) (int64, error) {
	const looks = 3
	script := fmt.Sprintf(`cd /var/spool/postfix
		find maildrop incoming active deferred -type f | wc -l
		grep -rhx "%s" /home/user/Maildir | sort -u | wc -l`, anyRow(number))
	for empty := 0; ; {
		out, err := to.exec(ctx, "sh", "-c", script)
		if err != nil {
			return 0, err
		}
		var queued, found int64
		if _, err := fmt.Sscan(out, &queued, &found); err != nil {
			return 0, fmt.Errorf("%q: %w", out, err)
		}
		if queued == 0 {
			empty++
		}
		if found >= asked || empty == looks {
			return max(0, asked-found), nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			return 0, fmt.Errorf("%d mails are still queued", queued)
		}
	}
}

type smtpSession struct {
	*smtp.Client
	number int
}

func connectSMTP(ctx context.Context, to address, number int) (smtpSession, error) {
	conn, err := to.Dial(ctx)
	if err != nil {
		return smtpSession{}, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	client, err := smtp.NewClient(conn, "service")
	if err != nil {
		return smtpSession{}, errors.Join(err, conn.Close())
	}
	return smtpSession{client, number}, client.Hello("client")
}

// Ask sends a mail. lostMail checks the delivery.
func (s smtpSession) Ask(ctx context.Context, nth int64) error {
	defer context.AfterFunc(ctx, func() { _ = s.Client.Close() })()
	if err := errors.Join(s.Mail("client@localhost"), s.Rcpt("user@localhost")); err != nil {
		return err
	}
	body, err := s.Data()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(body, "Subject: %d-%d\r\n\r\n%s\r\n", s.number, nth, row(s.number, nth))
	return errors.Join(err, body.Close())
}
