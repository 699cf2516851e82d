package kube

import (
	"net/http"

	"k8s.io/apimachinery/pkg/util/managedfields"
)

func openapiHandler() http.Handler { return http.NotFoundHandler() }

func typeConverter() (managedfields.TypeConverter, error) {
	return managedfields.NewDeducedTypeConverter(), nil
}
