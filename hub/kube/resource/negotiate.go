package resource

import (
	"mime"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
)

// Media types of encoded objects.
const (
	MediaJSON  = "application/json"
	MediaYAML  = "application/yaml"
	MediaProto = "application/vnd.kubernetes.protobuf"
)

// A Form is how an answer is written: its encoding, and the kind in which objects are shown.
type Form struct {
	Media string // mediaJSON, mediaYAML or mediaProto
	As    string // "", Table, PartialObjectMetadata or PartialObjectMetadataList
	Old   bool   // uses the kind of meta.k8s.io/v1beta1
	// Include says how much of its object a table's row contains.
	Include metav1.IncludeObjectPolicy
}

// A Clause is one form in an Accept header.
type Clause struct {
	Media  string
	Params map[string]string
	q      float64
}

// Clauses parses an Accept header. The best clause is first; unreadable clauses are skipped. An
// empty header accepts everything.
func Clauses(header string) (list []Clause) {
	if strings.TrimSpace(header) == "" {
		return []Clause{{Media: "*/*"}}
	}
	for part := range strings.SplitSeq(header, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		c := Clause{Media: media, Params: params, q: 1}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			c.q = q
		}
		list = append(list, c)
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].q > list[j].q })
	return list
}

// encodings maps the media types of clients to those that the hub writes.
var encodings = map[string]string{
	MediaJSON: MediaJSON, "application/*": MediaJSON, "*/*": MediaJSON,
	MediaYAML: MediaYAML, MediaProto: MediaProto,
}

// Negotiate returns the first form that the client accepts and the hub can write: an encoding of
// media, and one of the kinds.
func Negotiate(r *http.Request, media []string, kinds ...string) (Form, error) {
	for _, c := range Clauses(r.Header.Get("Accept")) {
		f := Form{Media: encodings[c.Media]}
		if !slices.Contains(media, f.Media) {
			continue
		}
		if as := c.Params["as"]; as != "" {
			v := c.Params["v"]
			f.As, f.Old = as, v == metav1beta1.SchemeGroupVersion.Version
			if !slices.Contains(kinds, as) || c.Params["g"] != metav1.GroupName ||
				!f.Old && v != metav1.SchemeGroupVersion.Version {
				continue
			}
		}
		if f.As == "Table" {
			if f.Media == MediaProto {
				continue // a table has no protobuf form
			}
			f.Include = metav1.IncludeObjectPolicy(r.URL.Query().Get("includeObject"))
			switch f.Include {
			case "":
				f.Include = metav1.IncludeMetadata
			case metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
			default:
				return Form{}, apierrors.NewBadRequest("includeObject is " + strconv.Quote(string(f.Include)) +
					": use None, Metadata or Object")
			}
		}
		return f, nil
	}
	return Form{}, notAcceptable(media)
}

func notAcceptable(media []string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + strings.Join(media, ", "),
	}}
}

// UnsupportedMedia refuses a body's media type.
func UnsupportedMedia(have string, want ...string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "the body of the request was in an unknown format (" + strconv.Quote(have) +
			") - accepted media types include: " + strings.Join(want, ", "),
	}}
}
