package kube

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/managedfields"

	"flotilla.dev/hub/kube/openapi"
)

// typeConverter reads the schemas by which server-side apply merges: the same
// that clients are shown.
func typeConverter() (managedfields.TypeConverter, error) {
	schemas, err := openapi.Schemas()
	if err != nil {
		return nil, fmt.Errorf("read the API's schemas: %w", err)
	}
	c, err := managedfields.NewTypeConverter(schemas, false)
	if err != nil {
		return nil, fmt.Errorf("take the API's schemas for server-side apply: %w", err)
	}
	return c, nil
}
