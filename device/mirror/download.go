package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Download writes a file of the hub from an offset up to its size. It fails where the line breaks,
// and the caller continues from there later.
func (m *Mirror) Download(ctx context.Context, path string, offset, size int64, w io.Writer) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://hub"+path, nil)
	if err != nil {
		return err
	}
	answer, err := m.ask(q, offset)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusPartialContent && (answer.StatusCode != http.StatusOK || offset != 0) {
		return errors.Join(fmt.Errorf("%s: the hub answers %s", path, answer.Status), answer.Body.Close())
	}
	n, readErr, writeErr := pass(w, bounded{io.LimitReader(answer.Body, size-offset), answer.Body})
	if err := errors.Join(readErr, writeErr); err != nil {
		return err
	}
	if offset+n < size {
		return fmt.Errorf("%s has %d bytes on the hub, not %d", path, offset+n, size)
	}
	return nil
}

// A bounded body ends at a size.
type bounded struct {
	io.Reader
	io.Closer
}
