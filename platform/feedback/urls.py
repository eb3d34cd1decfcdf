"""The addresses of feedback."""

from django.urls import path

from feedback import views

urlpatterns = [path("feedback", views.send, name="send_feedback")]
