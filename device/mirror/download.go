package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Download writes a file of the hub from an offset up to its size, and goes on where the line
// breaks.
func (m *Mirror) Download(ctx context.Context, path string, offset, size int64, w io.Writer) error {
	progress := time.Now()
	for {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://hub"+path, nil)
		if err != nil {
			return err
		}
		answer, err := m.ask(q, offset)
		switch {
		case err != nil:
		case answer.StatusCode == http.StatusPartialContent || answer.StatusCode == http.StatusOK && offset == 0:
			answer.Body = bounded{io.LimitReader(answer.Body, size-offset), answer.Body}
			n, readErr, writeErr := pass(w, answer.Body)
			if offset += n; n > 0 {
				progress = time.Now()
			}
			if writeErr != nil || offset >= size {
				return writeErr
			}
			if err = readErr; err == nil {
				return fmt.Errorf("%s has %d bytes on the hub, not %d", path, offset, size)
			}
		default:
			err = errors.Join(fmt.Errorf("%s: the hub answers %s", path, answer.Status), answer.Body.Close())
			if answer.StatusCode < http.StatusInternalServerError && answer.StatusCode != http.StatusTooManyRequests {
				return err
			}
		}
		if time.Since(progress) > giveUp {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryWait):
		}
	}
}

// A bounded body ends at a size.
type bounded struct {
	io.Reader
	io.Closer
}
