{{- define "outrider.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains "outrider" .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-outrider" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "outrider.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "outrider.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "outrider.priorityClass" -}}
{{- .Values.priorityClass.name | default (ternary (include "outrider.fullname" .) "" .Values.priorityClass.create) -}}
{{- end -}}

{{/* The servers' NetworkPolicies let pods with name and component in, so neither is to change. */}}
{{- define "outrider.selector" -}}
app.kubernetes.io/name: outrider
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "outrider.labels" -}}
{{ include "outrider.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image's name, of (dict "registry" … "image" … "context" $). */}}
{{- define "outrider.image" -}}
{{- $name := printf "%s/%s" (trimSuffix "/" .registry) .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (.image.tag | default .context.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "outrider.engineImage" -}}
{{- include "outrider.image" (dict "registry" (.Values.engine.image.registry | default .Values.image.registry) "image" .Values.engine.image "context" .) -}}
{{- end -}}

{{- define "outrider.cudaEngineImage" -}}
{{- $image := dict "repository" .Values.engine.image.cuda.repository "digest" .Values.engine.image.cuda.digest "tag" .Values.engine.image.tag -}}
{{- include "outrider.image" (dict "registry" (.Values.engine.image.registry | default .Values.image.registry) "image" $image "context" .) -}}
{{- end -}}
