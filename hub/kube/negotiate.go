package kube

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

const (
	mediaJSON  = "application/json"
	mediaYAML  = "application/yaml"
	mediaProto = "application/vnd.kubernetes.protobuf"
)

// A form is how an answer is to look: the encoding, and what it is shown as.
type form struct {
	media string // mediaJSON, mediaYAML or mediaProto
	as    string // "", Table, PartialObjectMetadata or PartialObjectMetadataList
	old   bool   // that of meta.k8s.io/v1beta1
	// Of tables only: what a row carries of its object.
	include metav1.IncludeObjectPolicy
}

// A clause is one of the forms that an Accept header lists.
type clause struct {
	media  string
	params map[string]string
	q      float64
}

// clauses reads an Accept header, best first; an unreadable clause is left out.
// No header at all asks for anything.
func clauses(header string) (list []clause) {
	if strings.TrimSpace(header) == "" {
		return []clause{{media: "*/*"}}
	}
	for part := range strings.SplitSeq(header, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		c := clause{media: media, params: params, q: 1}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			c.q = q
		}
		list = append(list, c)
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].q > list[j].q })
	return list
}

// encodings maps the media types that clients name to those that are written.
var encodings = map[string]string{
	mediaJSON: mediaJSON, "application/*": mediaJSON, "*/*": mediaJSON,
	mediaYAML: mediaYAML, mediaProto: mediaProto,
}

// negotiate picks the first form that the client asks for and the hub can write:
// encodings in media, shown as one of the kinds.
func negotiate(r *http.Request, media []string, kinds ...string) (form, error) {
	for _, c := range clauses(r.Header.Get("Accept")) {
		f := form{media: encodings[c.media]}
		if !slices.Contains(media, f.media) {
			continue
		}
		if as := c.params["as"]; as != "" {
			v := c.params["v"]
			f.as, f.old = as, v == metav1beta1.SchemeGroupVersion.Version
			if !slices.Contains(kinds, as) || c.params["g"] != metav1.GroupName || !f.old && v != metav1.SchemeGroupVersion.Version {
				continue
			}
		}
		if f.as == "Table" {
			if f.media == mediaProto {
				continue // a table has no protobuf form
			}
			f.include = metav1.IncludeObjectPolicy(r.URL.Query().Get("includeObject"))
			switch f.include {
			case "":
				f.include = metav1.IncludeMetadata
			case metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
			default:
				return form{}, apierrors.NewBadRequest("includeObject is " + strconv.Quote(string(f.include)) + ": use None, Metadata or Object")
			}
		}
		return f, nil
	}
	return form{}, notAcceptable(media)
}

func notAcceptable(media []string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + strings.Join(media, ", "),
	}}
}

func unsupportedMedia(have string, want ...string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: "the body of the request was in an unknown format (" + strconv.Quote(have) + ") - accepted media types include: " + strings.Join(want, ", "),
	}}
}

// media returns the encodings that a resource's objects have.
func (r *resource) media() []string {
	if r.plain {
		return []string{mediaJSON, mediaYAML}
	}
	return []string{mediaJSON, mediaYAML, mediaProto}
}
