package broker

import (
	"context"
	"log/slog"
)

// redacting passes mochi's log on without payloads, and in our words. What mochi
// says below an error is noise here (each bad client is told by greet, at a
// limited rate), so it is debugging.
type redacting struct{ to slog.Handler }

func (r redacting) Enabled(ctx context.Context, l slog.Level) bool {
	return r.to.Enabled(ctx, demoted(l))
}

func (r redacting) Handle(ctx context.Context, rec slog.Record) error {
	out := slog.NewRecord(rec.Time, demoted(rec.Level), "mqtt: "+rec.Message, rec.PC)
	rec.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(redact(a))
		return true
	})
	return r.to.Handle(ctx, out)
}

func (r redacting) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		out[i] = redact(a)
	}
	return redacting{r.to.WithAttrs(out)}
}

func (r redacting) WithGroup(name string) slog.Handler { return redacting{r.to.WithGroup(name)} }

func demoted(l slog.Level) slog.Level {
	if l < slog.LevelError {
		return slog.LevelDebug
	}
	return l
}

// redact lets numbers, words and errors pass. Packets, wills and whatever else
// holds what a device has sent do not.
func redact(a slog.Attr) slog.Attr {
	switch a.Key {
	case "error":
		a.Key = "err"
	case "client":
		a.Key = "node"
	}
	if a.Value.Kind() == slog.KindAny {
		if err, ok := a.Value.Any().(error); ok {
			return slog.String(a.Key, err.Error())
		}
		return slog.String(a.Key, "redacted")
	}
	return a
}
