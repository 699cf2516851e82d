package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/kube/remote"
	"flotilla.dev/hub/state"
)

// Streams runs commands in containers, attaches to containers, and connects to pods' ports, on the
// pods' devices. Each ends with ctx.
type Streams interface {
	// Exec returns an ask.ExitError if the command's exit code is not 0.
	Exec(ctx context.Context, pod *corev1.Pod, o corev1.PodExecOptions, s ask.IO) error
	Attach(ctx context.Context, pod *corev1.Pod, o corev1.PodAttachOptions, s ask.IO) error
	Forward(ctx context.Context, pod *corev1.Pod, port int32) (io.ReadWriteCloser, error)
}

const (
	// maxSessions limits concurrent commands, attachments, port-forwards and followed logs: each
	// holds memory for as long as its client likes.
	maxSessions = 256
	// userSessions is the limit of one user's sessions.
	userSessions = maxSessions / 2
	// endWait is how long sessions have to send their clients the reason when the hub ends.
	endWait = 3 * time.Second
)

// Run waits for ctx, which ends every session, and then until the clients have received the reason.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	short, cancel := context.WithTimeout(context.Background(), endWait)
	defer cancel()
	_ = s.sessions.Acquire(short, maxSessions)
	return nil
}

// enter takes a session until leave is called, or refuses it.
func (c *call) enter() (leave func(), err error) {
	mine, ok := c.shares.Enter(c.user.Name)
	if !ok {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d commands, attachments, port-forwards and followed logs "+
			"are open for user %s, which is the limit: end some", userSessions, c.user.Name), 10)
	}
	if !c.sessions.TryAcquire(1) {
		mine()
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d commands, attachments, port-forwards and followed logs "+
			"are open, which is the limit of this hub: end some", maxSessions), 10)
	}
	return func() { c.sessions.Release(1); mine() }, nil
}

// stream runs a command in a container, attaches to one, or forwards ports to a pod.
func (c *call) stream() error {
	// As in Kubernetes 1.35 and later, a GET needs the right to create too: a WebSocket begins with
	// a GET and does the same as a POST.
	c.verb = "create"
	if what := c.resource + "/" + c.sub.Name; !c.Allow(c.user.Role, c.verb, what) {
		return c.forbidden(what)
	}
	pod := c.Fleet.Snapshot().Pod(c.namespace, c.name)
	if pod == nil {
		return c.missing()
	}
	o, err := streamOptions(c.r.URL.Query(), c.sub.Name)
	if err != nil {
		return err
	}
	if c.sub.Name != "portforward" {
		if o.Container, err = containerOf(pod, o.Container); err != nil {
			return err
		}
	}
	if err := c.checkReachable(pod); err != nil {
		return err
	}
	if err := checkRunning(pod, o.Container); err != nil {
		return err
	}
	if _, err := c.upgrades(); err != nil { // refuses pages of other sites
		return err
	}
	leave, err := c.enter()
	if err != nil {
		return err
	}
	defer leave()
	c.audit(describeStream(o), nil)
	enabled := remote.Streams{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
	switch c.sub.Name {
	case "exec":
		return remote.Serve(c.w, c.r, enabled, func(ctx context.Context, s ask.IO) error {
			return nameThePod(pod, c.Streams.Exec(ctx, pod, *o, s))
		})
	case "attach":
		a := corev1.PodAttachOptions{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY, Container: o.Container}
		return remote.Serve(c.w, c.r, enabled, func(ctx context.Context, s ask.IO) error {
			return nameThePod(pod, c.Streams.Attach(ctx, pod, a, s))
		})
	default:
		return remote.Forward(c.w, c.r, func(ctx context.Context, port int32) (io.ReadWriteCloser, error) {
			return c.Streams.Forward(ctx, pod, port)
		})
	}
}

// describeStream describes a stream for the audit. It cuts long commands.
func describeStream(o *corev1.PodExecOptions) string {
	const most = 1000 // bytes
	words := o.Command
	if o.Container != "" {
		words = append([]string{"container", o.Container}, words...)
	}
	text := strings.Join(words, " ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

// streamOptions reads the options of exec, attach or portforward; attach has a part of exec's
// options.
func streamOptions(q url.Values, sub string) (*corev1.PodExecOptions, error) {
	o := &corev1.PodExecOptions{}
	if sub == "portforward" {
		return o, nil // the streams name the ports
	}
	o.Container, o.Stdin, o.Stdout, o.Stderr, o.TTY = q.Get("container"), truthy(q, "stdin"), truthy(q, "stdout"),
		truthy(q, "stderr"), truthy(q, "tty")
	if sub == "exec" {
		if o.Command = q["command"]; len(o.Command) == 0 || o.Command[0] == "" {
			return nil, apierrors.NewBadRequest("you must specify a command: there is none in the query")
		}
	}
	if !o.Stdin && !o.Stdout && !o.Stderr {
		return nil, apierrors.NewBadRequest("you must specify at least 1 of stdin, stdout, stderr")
	}
	return o, nil
}

// truthy reads a boolean of a query as Kubernetes does. Python clients send True and False.
func truthy(q url.Values, name string) bool {
	v := q.Get(name)
	return q.Has(name) && !strings.EqualFold(v, "false") && v != "0"
}

// containerOf returns the named container, or the pod's only one.
func containerOf(p *corev1.Pod, name string) (string, error) {
	names := func(list []corev1.Container) (names []string) {
		for _, ct := range list {
			names = append(names, ct.Name)
		}
		return names
	}
	main, first := names(p.Spec.Containers), names(p.Spec.InitContainers)
	var ephemeral []string
	for _, ct := range p.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, ct.Name)
	}
	switch {
	case name == "" && len(main) == 1:
		return main[0], nil
	case name == "":
		text := fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", p.Name,
			strings.Join(main, " "))
		if len(first) > 0 {
			text += fmt.Sprintf(" or one of the init containers: [%s]", strings.Join(first, " "))
		}
		if len(ephemeral) > 0 {
			text += fmt.Sprintf(" or one of the ephemeral containers: [%s]", strings.Join(ephemeral, " "))
		}
		return "", apierrors.NewBadRequest(text)
	case !slices.Contains(main, name) && !slices.Contains(first, name) && !slices.Contains(ephemeral, name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, p.Name))
	}
	return name, nil
}

// checkReachable returns why a pod's device cannot be asked, nil if it can.
func (c *call) checkReachable(p *corev1.Pod) error {
	node := p.Spec.NodeName
	if node == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", p.Name))
	}
	if c.Online == nil || c.Online(node) {
		return nil
	}
	return apierrors.NewServiceUnavailable(c.offline(node))
}

func (c *call) offline(node string) string {
	text := "the device of node " + node + " is not connected to the hub"
	if at := c.Leases.Seen(node); !at.IsZero() {
		text += ": it was last seen at " + at.UTC().Format(time.RFC3339)
	}
	return text
}

// checkRunning returns why a container, or the pod if none is named, cannot be entered according to
// its status.
func checkRunning(p *corev1.Pod, container string) error {
	if state.Terminated(p) {
		return apierrors.NewBadRequest(fmt.Sprintf("pod %s has ended: its phase is %s", p.Name, p.Status.Phase))
	}
	if container == "" {
		if p.Status.Phase != corev1.PodRunning {
			return apierrors.NewBadRequest(fmt.Sprintf("pod %s is not running: its phase is %s", p.Name, p.Status.Phase))
		}
		return nil
	}
	why := "it has not started yet"
	for _, st := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
		p.Status.EphemeralContainerStatuses) {
		switch {
		case st.Name != container:
		case st.State.Running != nil:
			return nil
		case st.State.Terminated != nil:
			why = fmt.Sprintf("it ended with code %d", st.State.Terminated.ExitCode)
		case st.State.Waiting != nil && st.State.Waiting.Reason != "":
			why = "it is waiting: " + st.State.Waiting.Reason
		}
	}
	return apierrors.NewBadRequest(fmt.Sprintf("container %s of pod %s is not running: %s", container, p.Name, why))
}

// nameThePod adds the pod's name to a device's error.
func nameThePod(p *corev1.Pod, err error) error {
	var exit *ask.ExitError
	if err == nil || errors.As(err, &exit) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
}

// deviceError converts a device's failure, before anything was sent, to an answer. An error that
// the device itself reports is about the request, so the answer is BadRequest.
func deviceError(err error) error {
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, ask.ErrOffline), errors.Is(err, ask.ErrLost):
		return apierrors.NewServiceUnavailable(err.Error())
	case errors.Is(err, ask.ErrTooOld):
		return notImplemented(err.Error())
	}
	return apierrors.NewBadRequest(err.Error())
}

// notImplemented answers 501, for which Kubernetes has no constructor.
func notImplemented(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotImplemented,
		Reason: "NotImplemented", Message: text}}
}
