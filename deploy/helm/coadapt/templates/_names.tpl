{{/* The name of all objects: the release's, which contains `coadapt`. */}}
{{- define "coadapt.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains "coadapt" $name) -}}
{{- $name = printf "%s-coadapt" $name -}}
{{- end -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "coadapt.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end -}}

{{- define "coadapt.claim" -}}
{{ .Values.storage.existingClaim | default (printf "%s-state" (include "coadapt.name" .)) }}
{{- end -}}

{{/* The scheduler's settings file: what the chart knows, and above it .Values.settings. */}}
{{- define "coadapt.settings" -}}
{{- $options := dict
    "image" (.Values.jobs.image | default (include "coadapt.image" .))
    "claim" (printf "%s/coadapt" (include "coadapt.claim" .))
    "address" (printf "%s.%s.svc" (include "coadapt.name" .) .Release.Namespace)
    "pod_template" "/etc/coadapt/pod.yaml" -}}
{{- with .Values.jobs.resource }}{{ $_ := set $options "resource" . }}{{ end -}}
{{- with .Values.jobs.slots }}{{ $_ := set $options "slots" (int .) }}{{ end -}}
{{- $labels := list -}}
{{- range $label, $value := .Values.jobs.nodeSelector }}{{ $labels = append $labels (printf "%s=%s" $label $value) }}{{ end -}}
{{- with $labels }}{{ $_ := set $options "node_selector" (join "," .) }}{{ end -}}
{{- $settings := dict "executor" "kubernetes" "host" "0.0.0.0" "port" 8471 "expose" true "executor_options" $options -}}
{{- with .Values.policy }}{{ $_ := set $settings "policy" . }}{{ end -}}
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.settings)) -}}
{{- end -}}

{{- define "coadapt.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
