{{- define "swlimitd.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "swlimitd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "swlimitd.labels" -}}
{{ include "swlimitd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* The settings: what the values say, and what the rest of the chart depends on. */ -}}
{{- define "swlimitd.settings" -}}
{{- $fixed := dict
  "limits" (keys .Values.limits | sortAlpha)
  "grpc" (dict "address" "0.0.0.0:8081")
  "http" (dict "address" "0.0.0.0:8080") -}}
{{- with .Values.monitoringPort -}}
{{- $_ := set $fixed.http "monitoring_address" (printf "0.0.0.0:%v" .) -}}
{{- end -}}
{{- if .Values.waitForServer -}}
{{- $_ := set $fixed "wait_for_server" true -}}
{{- end -}}
{{- if not .Values.server.existingSecret -}}
{{- $_ := set $fixed "server" .Values.server.url -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .Values.config) $fixed | toYaml -}}
{{- end -}}

{{- /* The name of the port that has metrics. */ -}}
{{- define "swlimitd.monitoring" -}}
{{- if .Values.monitoringPort }}monitoring{{ else }}http{{ end -}}
{{- end -}}

{{- define "swlimitd.scheme" -}}
{{- if dig "http" "tls" false .Values.config }}HTTPS{{ else }}HTTP{{ end -}}
{{- end -}}
