package kube

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// log copies a container's log.
func (c *call) log() error {
	opts, errs := logOptions(c.r.URL.Query())
	if opts.TailLines != nil && *opts.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *opts.TailLines, "must be greater than or equal to 0"))
	}
	if opts.LimitBytes != nil && *opts.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *opts.LimitBytes, "must be greater than 0"))
	}
	if opts.SinceSeconds != nil && opts.SinceTime != nil {
		errs = append(errs, field.Forbidden(field.NewPath("sinceSeconds"),
			"at most one of `sinceTime` or `sinceSeconds` may be specified"))
	}
	if opts.SinceSeconds != nil && *opts.SinceSeconds < 1 {
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *opts.SinceSeconds, "must be greater than 0"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, c.name, errs)
	}
	p := c.Fleet.Snapshot().Pod(c.namespace, c.name)
	if p == nil {
		return c.missing()
	}
	var err error
	if opts.Container, err = containerOf(p, opts.Container); err != nil {
		return err
	}
	if err := c.checkReachable(p); err != nil {
		return err
	}
	ws, err := c.upgrades()
	if err != nil {
		return err
	}
	if opts.Follow {
		leave, err := c.enter()
		if err != nil {
			return err
		}
		defer leave()
	}
	if ws {
		return c.logOverWebSocket(func(ctx context.Context, w io.Writer) error { return c.Logs.Logs(ctx, p, opts, w) })
	}
	out := &stream{w: c.w, rc: http.NewResponseController(c.w)}
	err = c.Logs.Logs(c.r.Context(), p, opts, out)
	return c.finishLog(out, err, "pod", c.namespace+"/"+c.name, "node", p.Spec.NodeName)
}

// finishLog ends the answer of a log whose copying ended with err. It adds about to the hub's log
// line.
func (c *call) finishLog(out *stream, err error, about ...any) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		out.begin()
		return nil
	case out.closed:
		c.Log.Debug("the client of a log is gone", append(about, "err", err)...)
		return nil
	case out.begun:
		c.Log.Warn("copy a log", append(about, "err", err)...)
		return nil
	}
	return deviceError(err)
}

// logOptions reads the options of a log request. Unknown options are ignored, as in Kubernetes.
func logOptions(q url.Values) (o corev1.PodLogOptions, errs field.ErrorList) {
	number := func(name string) *int64 {
		if q.Get(name) == "" {
			return nil
		}
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath(name), q.Get(name), "must be a whole number"))
			return nil
		}
		return &n
	}
	o = corev1.PodLogOptions{
		Container: q.Get("container"), Follow: truthy(q, "follow"), Previous: truthy(q, "previous"),
		Timestamps:   truthy(q, "timestamps"),
		SinceSeconds: number("sinceSeconds"), TailLines: number("tailLines"), LimitBytes: number("limitBytes"),
	}
	if v := q.Get("sinceTime"); v != "" {
		at, err := time.Parse(time.RFC3339, v)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath("sinceTime"), v, "must be a time such as 2026-01-31T12:00:00Z"))
		}
		since := metav1.NewTime(at)
		o.SinceTime = &since
	}
	if v := q.Get("stream"); v != "" {
		switch v {
		case corev1.LogStreamAll:
		case corev1.LogStreamStdout, corev1.LogStreamStderr: // the text of Kubernetes for an unsupported option
			errs = append(errs, field.Forbidden(field.NewPath("stream"), "may not be specified"))
		default:
			errs = append(errs, field.NotSupported(field.NewPath("stream"), v, []string{corev1.LogStreamAll}))
		}
	}
	return o, errs
}

// A stream is a plain text answer that is sent while it is written.
type stream struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	begun  bool
	closed bool // the client closed the connection
}

func (s *stream) begin() {
	if !s.begun {
		s.begun = true
		isolate(s.w.Header())
		s.w.Header().Set("Content-Type", "text/plain")
		s.w.WriteHeader(http.StatusOK)
	}
}

func (s *stream) Write(b []byte) (int, error) {
	s.begin()
	n, err := s.w.Write(b)
	if err == nil {
		err = s.rc.Flush()
	}
	s.closed = s.closed || err != nil
	return n, err
}
