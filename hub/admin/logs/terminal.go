package logs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/store"
)

const (
	maxFrame  = 64 << 10         // bytes that a page sends at once
	untouched = 30 * time.Minute // without input for this long a terminal is closed
	greeting  = 10 * time.Second // time for the page to send its form's token
	revoked   = 2 * time.Second  // a terminal whose session has ended is closed within this time
)

// commandOf splits a command into words; the default is the shell that most images have.
func commandOf(text string) []string {
	if words := strings.Fields(text); len(words) > 0 {
		return words
	}
	return []string{"sh"}
}

type terminalData struct {
	Pod, PodHref, Node, NodeHref string
	Namespace, Container         string
	Containers                   []frame.Option
	Command                      string
	Trouble                      string
	Socket, Logs                 string
	CSRF                         string
}

// Terminal shows the page of a terminal; its script opens the WebSocket.
func Terminal(c *frame.Call) error {
	p, err := podOf(c)
	if err != nil {
		return c.Refuse("Not found", err)
	}
	container, err := containerOf(p, c.QueryParam("container"))
	if err != nil {
		return c.Refuse("Not found", err)
	}
	same := url.Values{"container": {container}}
	d := terminalData{
		Pod: p.Name, PodHref: frame.PodHref(p), Namespace: p.Namespace, Node: p.Spec.NodeName,
		NodeHref: frame.NodeHref(p.Spec.NodeName), Container: container,
		Command: c.QueryParam("command"), CSRF: c.User.CSRF, Logs: frame.PodHref(p) + "/logs?" + same.Encode(),
	}
	for _, name := range containerNames(p) {
		d.Containers = append(d.Containers, frame.Option{Value: name, Text: name, Chosen: name == container})
	}
	if d.Command != "" {
		same.Set("command", d.Command)
	}
	if d.Trouble = noTerminal(p, container); d.Trouble == "" {
		d.Socket = frame.PodHref(p) + "/terminal/socket?" + same.Encode()
	}
	return c.ShowPage(http.StatusOK, frame.Page{Template: "terminal", Title: "Terminal in " + p.Name, Data: d})
}

// noTerminal says why a container cannot have a terminal.
func noTerminal(p *corev1.Pod, container string) string {
	if p.Spec.NodeName == "" {
		return unplaced
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for _, st := range list {
			if st.Name == container && st.State.Running == nil {
				return "Container " + container +
					" is not running, so it has no terminal; its log says why."
			}
		}
	}
	return ""
}

// TerminalSocket connects a page to a command in a container.
func TerminalSocket(c *frame.Call) error {
	r := c.Request()
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return c.Message(http.StatusUpgradeRequired, "For a terminal",
			"This address is for the terminal's own connection.")
	}
	if _, ok := c.Response().Writer.(http.Hijacker); !ok {
		return c.Message(http.StatusBadRequest, "For a terminal", "A WebSocket needs HTTP/1.1: the connection speaks "+
			r.Proto+".")
	}
	// A browser sends the session's cookie with a WebSocket of any site. Only our own origin is
	// accepted.
	if u, err := url.Parse(r.Header.Get("Origin")); err != nil || u.Host == "" || u.Host != r.Host {
		return c.Message(http.StatusForbidden, "Not accepted", "The request comes from another site.")
	}
	p, err := podOf(c)
	if err != nil {
		return c.Refuse("Not found", err)
	}
	container, err := containerOf(p, c.QueryParam("container"))
	if err != nil {
		return c.Refuse("Not found", err)
	}
	o := corev1.PodExecOptions{Container: container, Command: commandOf(c.QueryParam("command")), Stdin: true,
		Stdout: true, TTY: true}
	websocket.Server{
		Handshake: func(*websocket.Config, *http.Request) error { return nil }, // the origin was checked above
		Handler: func(conn *websocket.Conn) {
			conn.MaxPayloadBytes = maxFrame
			converse(c, p, o, newWindow(conn))
		},
	}.ServeHTTP(c.Response().Writer, r)
	return nil
}

// converse runs the command until it ends, the page closes, the session ends, or input is missing for
// too long.
func converse(c *frame.Call, p *corev1.Pod, o corev1.PodExecOptions, w *window) {
	first, err := w.greeted()
	if err == nil {
		err = checkToken(c, first.CSRF)
	}
	if err != nil {
		w.over("Not accepted: reload the page.", -1)
		return
	}
	leave, ok := c.Tools.Terminals.Enter(c.User.Name)
	if !ok {
		w.over("Too many terminals are open on this hub. Close some, and try again.", -1)
		return
	}
	defer leave()
	c.Record(store.Audit{Verb: "create", Resource: "pods/exec", Namespace: p.Namespace, Name: p.Name,
		Code:    http.StatusSwitchingProtocols,
		Message: o.Container + ": " + strings.Join(o.Command, " ")})

	ctx, cancel := context.WithCancelCause(c.Request().Context())
	defer cancel(nil)
	w.resize(first)
	until := func(over func() error) {
		defer panics.CatchThen("page terminal", cancel)
		cancel(over())
	}
	go until(func() error { return w.hear(ctx) })
	go until(func() error { return watchOver(c, ctx, w) })
	if w.say(note{Ready: true}) != nil {
		return
	}
	err = c.Shells.Exec(ctx, p, o, ask.IO{Stdin: w.input, Stdout: w, Resize: w.sizes})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	_ = w.input.Close()
	w.over(endOf(p, o, err, w.typed.Load()))
}

// checkToken checks, as for forms, that a page of this session opened the socket.
func checkToken(c *frame.Call, token string) error {
	r := c.Request().Clone(c.Request().Context())
	r.Method, r.Body, r.PostForm = http.MethodPost, http.NoBody, url.Values{"csrf": {token}}
	r.Header.Set("X-CSRF-Token", token)
	return c.Sessions.CheckForm(r, c.User)
}

// Reasons for which the hub closes a terminal.
const (
	errLeft      = frame.UserError("The page was closed.")
	errLoggedOut = frame.UserError("Your session has ended. Log in, and open the terminal again.")
	errUntouched = frame.UserError("The terminal was closed after half an hour without input.")
)

// watchOver sends signs of life until the session ends or input is missing for too long.
func watchOver(c *frame.Call, ctx context.Context, w *window) error {
	tick := time.NewTicker(revoked)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		u, err := c.Sessions.Authenticate(c.Request())
		switch {
		case err != nil || !c.Allow(u.Role, "create", "pods/exec"):
			return errLoggedOut
		case w.idle() > untouched:
			return errUntouched
		case w.say(note{Beat: true}) != nil:
			return errLeft
		}
	}
}

// endOf says how a command ended, with its exit code; -1: it has none.
func endOf(p *corev1.Pod, o corev1.PodExecOptions, err error, typed bool) (string, int) {
	var exit *ask.ExitError
	var ours frame.UserError
	switch {
	case err == nil:
		return "The command has ended.", 0
	case errors.As(err, &ours):
		return ours.Error(), -1
	case errors.Is(err, context.Canceled):
		return "The hub was stopped, and the command with it.", -1
	case errors.As(err, &exit) && !typed && (exit.Code == 126 || exit.Code == 127):
		return fmt.Sprintf("The image of container %s has no %s. Name a command that it has, or look at its log.",
			o.Container, o.Command[0]), -1
	case errors.As(err, &exit):
		return fmt.Sprintf("The command has ended with exit code %d.", exit.Code), exit.Code
	case errors.Is(err, ask.ErrOffline):
		return "The device of node " + p.Spec.NodeName + " is not connected to the hub.", -1
	case errors.Is(err, ask.ErrLost):
		return "The link to the device of node " + p.Spec.NodeName + " was lost, and the command with it.", -1
	}
	return "The device says: " + strings.TrimSuffix(err.Error(), ".") + ".", -1
}
